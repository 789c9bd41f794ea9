"""Measure what each cache saves and what it changes, and draw it: `python docs/caches.py`.

Writes docs/caches.json, docs/caches.svg and the tables of docs/caches.md (between its marks).
`--draw` draws again from the JSON, `--recommended` measures anew only what the page recommends.
About ten minutes on a free core.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

import anchorwatch as aw
from anchorwatch.figures.style import NULL, PAGE, PALETTE
from anchorwatch.metrics import stats
from anchorwatch.studies.prompts import prompt_of

HERE = Path(__file__).parent
CACHES = (
    "prefix",
    "dual",
    "delayed:4",
    "interval:32:4",
    "elastic:0.9",
    "evicting:0.5",
    "keep-sinks:4:refresh",
    "keep-sinks:4:keep",
)
SUBJECTS = {
    "lab/tales-mdm": ("text", aw.decoding.LowConfidence(16, 16, block=8, forbid_end=True)),
    "lab/toy-mdm": ("asked", aw.decoding.LowConfidence(16, 16, block=8)),
}
"""Model: the prompts of studies that it continues or answers, and how, exactly."""
ANSWERS = {
    "lab/toy-mdm": aw.decoding.LowConfidence(16, 8, block=8),
    "lab/tales-mdm": aw.decoding.LowConfidence(16, 8, block=8),
}
"""Models that answer questions beside the passage that holds the answer."""
ITEMS = 100
RECOMMENDED = "dual"
MORE_ITEMS = {"lab/toy-mdm": 400}
"""The cache that the page recommends for answers, and models that are given more items with it."""
SHOWN = {
    "rows": "rows computed",
    "commits_changed": "commits changed",
    "first_divergence": "first differs at",
    "kl": "KL, nats",
    "flips": "likeliest token changed",
    "attention_error": "attention elsewhere",
}
MARKS = ("<!-- {} -->", "<!-- end of {} -->")


def measure(prompts: int, items: int) -> dict[str, Any]:
    """Every number of the page."""
    result: dict[str, Any] = {"prompts": prompts, "items": items, "runs": {}, "answers": {}}
    for name, (which, decoding) in SUBJECTS.items():
        texts = [prompt_of(which, index).text for index in range(prompts)]
        table = aw.compare_caches(aw.load(name), texts, decoding, CACHES)
        keep = table[["cache", "quantity", "value", "low", "high", "null"]]
        result["runs"][name] = json.loads(keep.to_json(orient="records", double_precision=5))
    for name, decoding in ANSWERS.items():
        result["answers"][name] = measure_answers(name, decoding, items)
    return result | {"recommended": measure_recommended()}


def measure_recommended() -> dict[str, Any]:
    """Items that both answer, the exact run alone, the cached run alone, neither: by model."""
    counts = {}
    for name, items in MORE_ITEMS.items():
        scores = score_answers(name, ANSWERS[name], (None, RECOMMENDED), items)
        exact, cached = scores.values()
        cells = (exact & cached, exact & ~cached, cached & ~exact, ~(exact | cached))
        counts[name] = [int(cell.sum()) for cell in cells]
    return counts


def score_answers(name: str, decoding: Any, caches: Any, items: int) -> dict[str, Any]:
    """Whether each question is answered, by cache."""
    model, scores = aw.load(name), {}
    for cache in caches:
        asked = aw.evaluation.evaluate(
            model,
            "synthetic/one-hop",
            contexts="gold",
            limit=items,
            batch=1,
            decoding=replace(decoding, cache=cache),
        )
        assert asked.num_unfit == 0
        scores[cache or "exact"] = asked.rows["containment"].to_numpy(dtype=bool)
    return scores


def measure_answers(name: str, decoding: Any, items: int) -> dict[str, Any]:
    """Share of questions answered, exactly and with each cache, and the paired difference."""
    every = score_answers(name, decoding, (None, *CACHES), items)
    scores = {cache: right.astype(float) for cache, right in every.items()}
    answers = {}
    for cache, score in scores.items():
        gap = stats.difference(score, scores["exact"], paired=True)
        numbers = (score.mean(), gap.value, gap.low, gap.high)
        answers[cache] = [round(float(number), 4) for number in numbers]
    return answers


def write_tables(result: dict[str, Any]) -> None:
    """The tables of the page."""
    page = HERE / "caches.md"
    text = page.read_text()
    for name, rows in result["runs"].items():
        text = put_between(text, f"runs of {name}", table_of_runs(rows))
    text = put_between(text, "answers", table_of_answers(result["answers"]))
    text = put_between(text, "recommended", table_of_recommended(result["recommended"]))
    page.write_text(text)


def table_of_runs(rows: list[dict[str, Any]]) -> str:
    by_cache: dict[str, dict[str, Any]] = {}
    for row in rows:
        by_cache.setdefault(row["cache"], {})[row["quantity"]] = row
    lines = [
        f"| cache | {' | '.join(SHOWN.values())} |",
        "|---|" + "---|" * len(SHOWN),
    ]
    for cache, numbers in by_cache.items():
        cells = [spell(numbers[name]) for name in SHOWN]
        lines.append(f"| `{cache}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def spell(row: dict[str, Any]) -> str:
    value = f"{row['value']:.3f}".lstrip("0") if row["value"] < 1 else f"{row['value']:.2f}"
    if row["quantity"] == "rows" or row["low"] is None:
        return value
    low, high = (f"{row[side]:.3f}".replace("0.", ".", 1) for side in ("low", "high"))
    return f"{value} [{low}, {high}]"


def table_of_answers(answers: dict[str, Any]) -> str:
    names = list(answers)
    head = " | ".join(f"{name}: right | less exact" for name in names)
    lines = [f"| cache | {head} |", "|---|" + "---|---|" * len(names)]
    for cache in ("exact", *CACHES):
        cells = []
        for name in names:
            right, gap, low, high = answers[name][cache]
            apart = "" if cache == "exact" else f"{gap:+.3f} [{low:+.3f}, {high:+.3f}]"
            cells += [f"{right:.3f}", apart]
        lines.append(f"| `{cache}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table_of_recommended(counts: dict[str, Any]) -> str:
    head = f"model | items | exact | `{RECOMMENDED}` | answered by one alone | less exact"
    lines = [f"| {head} |", "|---|---|---|---|---|---|"]
    for name, (both, exact, cached, neither) in counts.items():
        items = both + exact + cached + neither
        gap = stats.mcnemar(cached, exact, both=both, neither=neither)
        right = f"{(both + exact) / items:.4f} | {(both + cached) / items:.4f}"
        apart = f"{gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
        lines.append(f"| {name} | {items} | {right} | {exact}, {cached} | {apart} |")
    return "\n".join(lines)


def put_between(text: str, name: str, table: str) -> str:
    start, end = (mark.format(name) for mark in MARKS)
    before, rest = text.split(start)
    return f"{before}{start}\n\n{table}\n\n{end}{rest.split(end)[1]}"


def draw(result: dict[str, Any]) -> None:
    """Rows computed against commits changed and KL, one panel for each."""
    plt.rcParams.update({"font.size": 7, "svg.hashsalt": "caches", "svg.fonttype": "none"})
    figure, panels = plt.subplots(
        len(SUBJECTS), 2, figsize=(PAGE, 4.6), layout="constrained", sharex="row"
    )
    wanted = {"commits_changed": "commits changed", "kl": "KL to the whole pass, nats"}
    for line, (name, rows) in zip(panels, result["runs"].items(), strict=True):
        values = {(row["cache"], row["quantity"]): row for row in rows}
        for axes, (quantity, label) in zip(line, wanted.items(), strict=True):
            for index, cache in enumerate(CACHES):
                x, y = values[cache, "rows"]["value"], values[cache, quantity]
                ends = [y["value"] if y[side] is None else y[side] for side in ("low", "high")]
                bars = [[y["value"] - ends[0]], [ends[1] - y["value"]]]
                look = {"fmt": "osD^v<>P"[index], "ms": 4, "lw": 0.8}
                colour = PALETTE[index % len(PALETTE)]
                axes.errorbar(x, y["value"], bars, color=colour, label=cache, **look)
            if quantity == "kl":
                axes.set_yscale("log")
            else:
                axes.axhline(0, color=NULL, ls=":", lw=0.8)
            axes.set(xlabel="rows computed, share of exact", ylabel=label, title=name, xlim=(0, 1))
    panels[0, 0].legend(frameon=False, fontsize=6)
    figure.savefig(HERE / "caches.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="only draw, from the JSON")
    parser.add_argument("--recommended", action="store_true", help="only what is recommended")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--items", type=int, default=ITEMS)
    given = parser.parse_args()
    kept = HERE / "caches.json"
    if not given.draw:
        torch.set_num_threads(1)
        if given.recommended:
            result = json.loads(kept.read_text()) | {"recommended": measure_recommended()}
        else:
            result = measure(given.prompts, given.items)
        kept.write_text(json.dumps(result, indent=1) + "\n")
    result = json.loads(kept.read_text())
    write_tables(result)
    draw(result)


if __name__ == "__main__":
    main()
