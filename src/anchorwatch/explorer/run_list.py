"""A folder of runs as a page: a filter, a table, and two runs opened side by side. No script.

The table is made here, a hundred rows at a time, so that a hundred thousand runs are as quick as
ten. Runs are known by the number of their row while the server lives, never by a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from html import escape
from urllib.parse import urlencode

import pandas as pd

from anchorwatch.explorer.open import open_for_viewing
from anchorwatch.explorer.run_data import MissingError, Options, Run
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.runs import Runs, searchable_text

ROWS = 100
"""Rows of a page."""
MOST_OPENED = 8
"""Runs that are open at once."""
LONGEST_FILTER = 500
SHOWN = ("model", "prompt", "decoding", "edit", "seed", "steps", "answer")
_LONGEST_CELL = 90
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_STYLE = """
:root{color-scheme:light dark}body{font:15px/1.4 system-ui,sans-serif;margin:1.5rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .6rem;
border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent);vertical-align:top}
th{position:sticky;top:0;background:Canvas}td.n{text-align:right;font-variant-numeric:tabular-nums}
form{margin:0}.bar{display:flex;gap:.6rem;flex-wrap:wrap;margin:.8rem 0;align-items:center}
input[type=search]{min-width:18rem;font:inherit;padding:.3rem}
button{font:inherit;padding:.3rem .8rem}
a{color:LinkText}.wide{overflow-x:auto}
"""


class RunFolder:
    """The runs of a folder, listed; each is opened when it is first looked at."""

    def __init__(self, runs: Runs, options: Options) -> None:
        self._runs, self._options = runs, options
        self._text = searchable_text(runs.table)
        self._open = lru_cache(maxsize=MOST_OPENED)(self._open_run)

    def __len__(self) -> int:
        return len(self._runs)

    def name(self, index: int) -> str:
        """What the page calls a run."""
        row = self._runs.table.iloc[index]
        words = (row["model"], row["prompt"], row["edit"], f"seed {row['seed']}")
        return one_line(", ".join(map(str, words)))[:80]

    def run(self, index: int) -> Run:
        """The run of a row."""
        if not 0 <= index < len(self):
            raise MissingError("there is no such run")
        return self._open(index)

    def _open_run(self, index: int) -> Run:
        return Run(open_for_viewing(self._runs.trace_path(index)), self._options)

    def filter(self, words: str) -> pd.DataFrame:
        """Rows that hold all of the words; their index is the number of the run."""
        table, text = self._runs.table, self._text
        for word in words.lower().split():
            keep = text.str.contains(word, regex=False)
            table, text = table[keep], text[keep]
        return table

    def page(self, words: str, number: int) -> str:
        """Page `number` of the rows that hold the words, as HTML."""
        words = words[:LONGEST_FILTER]
        rows = self.filter(words)
        pages = max(1, -(-len(rows) // ROWS))
        number = min(max(1, number), pages)
        part = rows.iloc[(number - 1) * ROWS : number * ROWS]
        head = "".join(f'<th scope="col">{name}</th>' for name in ("", *SHOWN))
        body = "".join(_row(int(str(index)), row) for index, row in part.iterrows())
        count = f"{len(rows):,} of {len(self):,} runs" if words else f"{len(rows):,} runs"
        return "".join(
            [
                '<!doctype html><html lang="en"><head><meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width,initial-scale=1">',
                '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">',
                f"<title>anchorwatch: {count}</title><style>{_STYLE}</style></head><body><main>",
                f"<h1>{count}</h1>",
                '<form method="get" action="./" role="search" class="bar">',
                '<label>Filter <input type="search" name="words" ',
                f'value="{escape(words)}" placeholder="model, prompt, edit, answer"></label>',
                "<button>Show</button></form>",
                '<form method="get" action="open"><div class="bar">',
                "<button>Open the ticked runs side by side</button>",
                _turn(words, number, pages),
                f'</div><div class="wide"><table><thead><tr>{head}</tr></thead>',
                f"<tbody>{body}</tbody></table></div></form></main></body></html>",
            ]
        )


def _row(index: int, row: pd.Series) -> str:
    label = escape(f"run {index}: {row['model']}, {row['prompt']}, {row['edit']}, {row['seed']}")
    cells = [f'<td><input type="checkbox" name="run" value="{index}" aria-label="{label}"></td>']
    for name in SHOWN:
        value = one_line(str(row[name]))
        text = escape(value if len(value) <= _LONGEST_CELL else f"{value[:_LONGEST_CELL]}…")
        if name == "model":
            text = f'<a href="open?run={index}">{text}</a>'
        kind = ' class="n"' if name in ("seed", "steps") else ""
        cells.append(f"<td{kind}>{text}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _turn(words: str, number: int, pages: int) -> str:
    """Links to the page before and after."""
    if pages == 1:
        return ""

    def link(target: int, text: str) -> str:
        if not 1 <= target <= pages:
            return f"<span>{text}</span>"
        query = escape(urlencode({"words": words, "page": target}))
        return f'<a href="./?{query}">{text}</a>'

    return f"{link(number - 1, 'before')} page {number} of {pages} {link(number + 1, 'next')}"


def parse_numbers(given: Sequence[str], most: int = 4) -> list[int]:
    """Run numbers of a query; anything else is no run."""
    numbers = [int(word) for word in given if word.isdecimal() and len(word) <= 9]
    if not numbers or len(numbers) != len(given) or len(numbers) > most:
        raise MissingError(f"tick one run, or up to {most} to compare")
    return numbers
