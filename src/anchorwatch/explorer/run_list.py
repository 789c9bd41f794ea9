"""A folder of runs as a page: filters, a table or small pictures, and runs opened side by side.

The page is made here, a hundred rows at a time and without script, so that a hundred thousand runs
are as quick as ten. Runs are known by the number of their row while the server lives, never by a
path. Of a study's evidence the page has the claims, too, and the report with links to their runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from urllib.parse import urlencode

import pandas as pd

from anchorwatch.errors import TraceError
from anchorwatch.explorer.open import open_for_viewing
from anchorwatch.explorer.run_data import MissingError, Options, Run
from anchorwatch.explorer.thumbnail import draw_thumbnail
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.runs import CLAIMS, LABELS, Runs, searchable_text

ROWS, PICTURES = 100, 48
"""Rows of a page, and pictures of one."""
MOST_OPENED, MOST_DRAWN = 8, 512
"""Runs that are open at once; pictures that are kept."""
LONGEST_FILTER = 500
MOST_CHOICES = 200
"""Values of a label that the page lists to choose from; beyond, words find them."""
SHOWN = ("model", "prompt", "decoding", "edit", "seed", "steps", "answer")
_LONGEST_CELL = 90
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.4 system-ui,sans-serif;margin:1.5rem;background:Canvas;color:CanvasText}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .6rem;
border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent);vertical-align:top}
th{position:sticky;top:0;background:Canvas}td.n{text-align:right;font-variant-numeric:tabular-nums}
form{margin:0}.bar{display:flex;gap:.6rem;flex-wrap:wrap;margin:.8rem 0;align-items:center}
td:last-child{min-width:18rem}h1{font-size:1.3rem}
input[type=search]{min-width:14rem;max-width:100%;font:inherit;padding:.3rem}
select{font:inherit;padding:.3rem;max-width:14rem}button{font:inherit;padding:.3rem .8rem}
a{color:LinkText}.wide{overflow-x:auto}.note{max-width:46rem;opacity:.8}
ul.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(13rem,1fr));gap:1rem;
list-style:none;padding:0;margin:0}ul.pictures li{overflow-wrap:anywhere;font-size:.85rem}
ul.pictures img{display:block;width:100%;height:7rem;image-rendering:pixelated;
border:1px solid color-mix(in srgb,currentColor 25%,transparent)}
"""


@dataclass(frozen=True)
class Report:
    """The report of a study, served beside its runs; only our own script and style may act."""

    html: bytes
    policy: str


@dataclass(frozen=True)
class ListQuery:
    """Which runs a page shows, and how."""

    words: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    """(label, value) that a run must have."""
    pictures: bool = False
    page: int = 1

    def link(self, page: int | None = None, pictures: bool | None = None) -> str:
        """The address of the same runs on another page, or shown in the other way."""
        shown = self.pictures if pictures is None else pictures
        asked = {"words": self.words} | dict(self.labels) | ({"as": "pictures"} if shown else {})
        asked |= {"page": str(page or 1)}
        return escape(f"./?{urlencode({name: value for name, value in asked.items() if value})}")


class RunFolder:
    """The runs of a folder, listed; each is opened when it is first looked at."""

    def __init__(self, runs: Runs, options: Options, report: Report | None = None) -> None:
        self._runs, self._options, self.report = runs, options, report
        self._text = searchable_text(runs.table)
        self._open = lru_cache(maxsize=MOST_OPENED)(self._open_run)
        self.picture = lru_cache(maxsize=MOST_DRAWN)(self._draw)
        self._choices = _list_choices(runs.table)

    def __len__(self) -> int:
        return len(self._runs)

    def name(self, index: int) -> str:
        """What the page calls a run."""
        row = self._runs.table.iloc[index]
        words = (row["model"], row["prompt"], row["edit"], f"seed {row['seed']}")
        return one_line(", ".join(map(str, words)))[:80]

    def run(self, index: int) -> Run:
        """The run of a row."""
        self._refuse_missing(index)
        return self._open(index)

    def _refuse_missing(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise MissingError("there is no such run")

    def _open_run(self, index: int) -> Run:
        return Run(open_for_viewing(self._runs.trace_path(index)), self._options)

    def _draw(self, index: int) -> bytes:
        """A small picture of a run, as PNG."""
        self._refuse_missing(index)
        opened = open_for_viewing(self._runs.trace_path(index))
        if opened.trace is None:
            raise TraceError(f"{opened.name} cannot be drawn: {opened.damage[0]}")
        return draw_thumbnail(opened.trace)

    def read_query(self, asked: Mapping[str, str]) -> ListQuery:
        """What the address of a page asks for; what it cannot mean is left out."""
        number = asked.get("page", "1")
        return ListQuery(
            asked.get("words", "")[:LONGEST_FILTER],
            tuple((name, asked[name]) for name in self._choices if asked.get(name)),
            asked.get("as") == "pictures",
            int(number) if number.isascii() and number.isdecimal() and len(number) <= 9 else 1,
        )

    def filter(self, query: ListQuery) -> pd.DataFrame:
        """Rows that have the labels and all of the words; their index is the number of the run."""
        table, text = self._runs.table, self._text
        for name, value in query.labels:
            keep = _has_label(table, name, value)
            table, text = table[keep], text[keep]
        for word in query.words.lower().split():
            keep = text.str.contains(word, regex=False)
            table, text = table[keep], text[keep]
        return table

    def page(self, query: ListQuery) -> str:
        """A page of the rows that the query chooses, as HTML."""
        rows = self.filter(query)
        each = PICTURES if query.pictures else ROWS
        pages = max(1, -(-len(rows) // each))
        number = min(max(1, query.page), pages)
        part = rows.iloc[(number - 1) * each : number * each]
        chosen = query.words or query.labels
        count = f"{len(rows):,} of {len(self):,} runs" if chosen else f"{len(rows):,} runs"
        shown = _draw_pictures(part) if query.pictures else _draw_table(part)
        other = query.link(pictures=not query.pictures)
        return "".join(
            [
                '<!doctype html><html lang="en"><head><meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width,initial-scale=1">',
                '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">',
                f"<title>anchorwatch: {count}</title><style>{_STYLE}</style></head><body><main>",
                f"<h1>{count}</h1>",
                '<p><a href="report">The report that was made of them</a></p>' * bool(self.report),
                self._draw_filters(query),
                '<form method="get" action="open"><div class="bar">',
                "<button>Open the ticked runs side by side</button>",
                f'<a href="{other}">{"as a table" if query.pictures else "as small pictures"}</a> ',
                _turn(query, number, pages),
                f"</div>{shown}</form></main></body></html>",
            ]
        )

    def _draw_filters(self, query: ListQuery) -> str:
        chosen = dict(query.labels)
        parts = [
            '<form method="get" action="./" role="search" class="bar">',
            '<label>Words <input type="search" name="words" ',
            f'value="{escape(query.words)}" placeholder="model, prompt, edit, answer"></label>',
        ]
        for name, values in self._choices.items():
            listed = "".join(
                f'<option value="{escape(value)}"{" selected" * (chosen.get(name) == value)}>'
                f"{_shorten(value)}</option>"
                for value in values
            )
            parts.append(
                f'<label>{name} <select name="{name}"><option value="">all</option>{listed}'
                "</select></label>"
            )
        if query.pictures:
            parts.append('<input type="hidden" name="as" value="pictures">')
        return "".join([*parts, "<button>Show</button></form>"])


def _list_choices(table: pd.DataFrame) -> dict[str, list[str]]:
    """Values to choose from, of labels that have several and not too many."""
    choices = {}
    if CLAIMS in table:
        choices["claim"] = sorted({claim for words in table[CLAIMS] for claim in words.split()})
    for name in LABELS:
        values = sorted(table[name].unique().tolist())
        if 1 < len(values) <= MOST_CHOICES:
            choices[name] = [str(value) for value in values]
    return choices


def _has_label(table: pd.DataFrame, name: str, value: str) -> pd.Series:
    if name == "claim":
        return (" " + table[CLAIMS] + " ").str.contains(f" {value} ", regex=False)
    return table[name].astype(str) == value


def _draw_table(part: pd.DataFrame) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in SHOWN)
    body = "".join(_row(int(str(index)), row) for index, row in part.iterrows())
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="The runs"><table><thead><tr>'
        f"<td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _draw_pictures(part: pd.DataFrame) -> str:
    items = "".join(_draw_item(int(str(index)), row) for index, row in part.iterrows())
    return (
        '<p class="note">In each picture steps go down and positions across. The darker a point, '
        "the more attention its position receives, from an even share to 8 times one or more (mean "
        "over heads of up to eight layers); orange is a token being written.</p>"
        f'<ul class="pictures">{items}</ul>'
    )


def _tick(index: int, row: pd.Series) -> str:
    label = escape(f"run {index}: {row['model']}, {row['prompt']}, {row['edit']}, {row['seed']}")
    return f'<input type="checkbox" name="run" value="{index}" aria-label="{label}">'


def _draw_item(index: int, row: pd.Series) -> str:
    words = [str(row[name]) for name in ("model", "prompt", "decoding", "edit")]
    title = _shorten(", ".join(word for word in (*words, f"seed {row['seed']}") if word))
    return (
        f'<li><a href="open?run={index}"><img src="picture/{index}.png" alt="" loading="lazy">'
        f"{title}</a><br>{_tick(index, row)} {_shorten(str(row['answer']))}</li>"
    )


def _row(index: int, row: pd.Series) -> str:
    cells = [f"<td>{_tick(index, row)}</td>"]
    for name in SHOWN:
        text = _shorten(str(row[name]))
        if name == "model":
            text = f'<a href="open?run={index}">{text}</a>'
        kind = ' class="n"' if name in ("seed", "steps") else ""
        cells.append(f"<td{kind}>{text}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _shorten(text: str) -> str:
    value = one_line(text)
    return escape(value if len(value) <= _LONGEST_CELL else f"{value[:_LONGEST_CELL]}…")


def _turn(query: ListQuery, number: int, pages: int) -> str:
    """Links to the page before and after."""
    if pages == 1:
        return ""

    def link(target: int, text: str) -> str:
        if not 1 <= target <= pages:
            return f"<span>{text}</span>"
        return f'<a href="{query.link(page=target)}">{text}</a>'

    return f"{link(number - 1, 'before')} page {number} of {pages} {link(number + 1, 'next')}"


def parse_numbers(given: Sequence[str], most: int = 4) -> list[int]:
    """Run numbers of a query; anything else is no run."""
    numbers = [int(word) for word in given if word.isdecimal() and len(word) <= 9]
    if not numbers or len(numbers) != len(given) or len(numbers) > most:
        raise MissingError(f"tick one run, or up to {most} to compare")
    return numbers
