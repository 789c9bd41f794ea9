"""Where in a row a sink token gains: arms trained as in recipes/variants.py, measured by position.

    python recipes/variants_by_position.py --seeds 0 1 2 3 --until 20:35     # a second call resumes

Two kinds of rows: `whole`, which begin with the start token, and `cropped`, which lose 1 to 16 of
their first tokens in training and in what is measured, so that no constant token begins them.
Every seed has a base checkpoint, which its arms share. One process, one run after another. Runs and
rows lie in runs/variants; the rows of all finished runs become variants_by_position.csv, which
`anchorwatch.training.variants.by_position()` reads.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import export_model
import make_models
import pandas as pd
import variants as recipe

from anchorwatch.models.load import load
from anchorwatch.models.model import Model
from anchorwatch.trace.atomic_io import read_record, replace_file
from anchorwatch.training import card_measures as measures
from anchorwatch.training import variants
from anchorwatch.training.checkpoints import MODEL
from anchorwatch.training.corpora import Corpus
from anchorwatch.training.held_out import nll_by_position
from anchorwatch.training.loop import fit

ROW = "row-by-position.json"
CROP = 16
ROWS: dict[str, tuple[str, ...]] = {"whole": (), "cropped": (f"corpus.crop={CROP}",)}
EXAMPLES, DRAWS, TEXTS = 512, 4, 6
"""Of the bound, and rows that are looked at with masks."""
MIDDLE = 0.5
"""The share of masks at which attention is reported."""


def main(words: list[str] | None = None) -> int:
    options = _parse_options(words)
    jobs = [
        (seed, rows, arm) for seed in options.seeds for rows in options.rows for arm in options.arms
    ]
    for seed, rows, arm in jobs if "train" in options.only else ():
        if options.until and datetime.now(UTC).strftime("%H:%M") >= options.until:
            print(f"stopped before {arm}, {rows} rows, seed {seed}", file=sys.stderr)
            break
        began = time.process_time()
        measure_arm(options.runs, arm, rows, seed)
        print(
            f"{datetime.now(UTC):%H:%M:%S} {arm}, {rows} rows, seed {seed}: "
            f"{time.process_time() - began:.0f} CPU s",
            file=sys.stderr,
            flush=True,
        )
    if "table" in options.only:
        write_table(options.runs, options.table)
    return 0


def measure_arm(runs: Path, arm: str, rows: str, seed: int) -> dict[str, Any]:
    """Train one arm with one seed on one kind of rows, and measure it; a kept row is read again."""
    name = f"{make_models.BASE}-seed{seed}"
    base = runs / name
    if not (base / MODEL).is_dir():
        path = Path(__file__).with_name("variants-stem.toml")
        make_models.train_base(path, runs, name, (f"seed={seed}",))
    settings = (
        f'model.from="{(base / MODEL).as_posix()}"',
        f"corpus.seed={recipe.NEXT_ROWS + seed}",
        *ROWS[rows],
        f"seed={seed}",
    )
    path = Path(__file__).with_name("variants.toml")
    spec = variants.read_arm(path, variants.VARIANTS, arm, settings)
    folder = runs / (f"{arm}-seed{seed}" if rows == "whole" else f"{arm}-{rows}-seed{seed}")
    if (folder / ROW).is_file():
        kept: dict[str, Any] = read_record(folder / ROW)
        if kept["spec"] == spec.digest:
            return kept
    done = fit(spec, folder)
    model = load(done.model, device="cpu")
    assert model.tokenizer is not None, "what we train has one"
    held_out = replace(
        export_model.open_corpus(spec.as_dict(), model.tokenizer),
        split="held-out",
        seed=measures.SEED,
    )
    row = {
        "arm": arm,
        "rows": rows,
        "seed": seed,
        "spec": spec.digest,
        "version": variants.VERSION,
        "updates": done.updates,
        "tokens": done.tokens,
    }
    row |= measure_positions(model, held_out) | measure_attention(model, held_out)
    plain: dict[str, Any] = measures.plain_values(row)
    replace_file(folder / ROW, (json.dumps(plain, indent=1) + "\n").encode())
    return plain


def measure_positions(model: Model, held_out: Corpus) -> dict[str, float]:
    """The bound, and its parts by position, of held-out rows."""
    table = nll_by_position(
        model,
        held_out,
        variants.EDGES,
        examples=EXAMPLES,
        draws=DRAWS,
        seed=measures.SEED,
    )
    row = {"bound.all": float(table["part"].sum())}
    for cells in table.itertuples():
        row |= {
            f"bound.from.{cells.first}": float(cells.value),
            f"bound.from.{cells.first}.part": float(cells.part),
            f"bound.from.{cells.first}.masked": float(cells.masked),
            f"bound.from.{cells.first}.n": int(cells.n),
        }
    return row


def measure_attention(model: Model, held_out: Corpus) -> dict[str, float]:
    """Attention on added keys over an even share and the norm of their values, by share of masks
    and by layer."""
    texts = [held_out[index].ids.astype("int64") for index in range(TEXTS)]
    noisy = measures.measure_noisy(model, texts, measures.SEED)
    row: dict[str, float] = {}
    for t, cells in noisy["t"].items():
        row[f"sink_mass.t.{t}"] = cells["sink_mass"]
        row[f"sink_over_even.t.{t}"] = cells["sink_mass"] / cells["sink_mass_null"]
        row[f"sink_value_ratio.t.{t}"] = cells["sink_value_ratio"]
    for name in ("sink_mass", "sink_value_ratio"):
        row |= {f"{name}.layer.{i}": value for i, value in enumerate(noisy["layer"][name])}
    return row


def write_table(runs: Path, path: Path) -> None:
    """All rows that were measured, in the order of kinds of rows, arms and seeds.

    Rows of the table that have no run in the folder are kept as they are.
    """
    measured = [read_record(file) for file in sorted(runs.glob(f"*/{ROW}"))]
    if not measured:
        raise SystemExit(f"{runs} has no row: train first, without --only table")
    table = pd.DataFrame(measured)
    if path.is_file():
        keys = ["rows", "arm", "seed"]
        table = pd.concat([table, pd.read_csv(path)]).drop_duplicates(keys, ignore_index=True)
    arms, kinds = list(variants.VARIANTS), list(ROWS)
    ranks = {"rows": kinds.index, "arm": arms.index, "seed": int}
    table = table.sort_values(list(ranks), key=lambda column: column.map(ranks[column.name]))
    table.to_csv(path, index=False, float_format=recipe.DIGITS)


def _parse_options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=variants.VARIANTS,
        default=["vanilla", "sink", "sink-no-rotary"],
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--only", nargs="+", choices=("train", "table"), default=["train", "table"])
    parser.add_argument("--until", default="", help="start no run after this time (UTC), as 20:35")
    parser.add_argument("--runs", type=Path, default=Path("runs", "variants"))
    parser.add_argument(
        "--table", type=Path, default=recipe.TABLE.with_name("variants_by_position.csv")
    )
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
