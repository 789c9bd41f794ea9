"""What a sweep costs beyond its runs, each number beside its limit: `make bench-sweeps`.

1. Overhead: CPU seconds of a cell in a sweep in this process against `aw.run(...).write` in a loop.
   The limit, 5 % at 1 s a cell, is stated as milliseconds of overhead.
2. Speed-up: wall-clock time of a sweep with one one-thread worker against two, start-up left out.
   It needs two quiet cores.
3. Listing: seconds to index, count, open and filter 100,000 cells.
"""

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path

import anchorwatch as aw
from anchorwatch.explorer.run_data import Options
from anchorwatch.explorer.run_list import RunFolder
from anchorwatch.sweeps.spec import digest_of, make_keys, read_axes, spec_from, sweep_record
from anchorwatch.sweeps.status import read_status
from anchorwatch.trace.atomic_io import seal
from anchorwatch.trace.cells import open_cells
from anchorwatch.trace.runs import build_index, open_runs

OVERHEAD_MS, SPEEDUP, LIST_S = 50.0, 1.7, 5.0
PROMPT = "Passage: Lena was born in Oslo. Question: Where was Lena born? Answer:"


def spec_of(model, cells, length):
    return {
        "models": [model],
        "prompts": [PROMPT],
        "decodings": {"d": f"low-confidence:length={length},temperature=1.0"},
        "seeds": list(range(cells)),
    }


def overhead(cells):
    """Milliseconds of CPU of a cell beyond running and writing it; lab/toy-mdm, 16 positions."""
    model = aw.load("lab/toy-mdm")
    how = aw.decoding.LowConfidence(16, temperature=1.0)
    with tempfile.TemporaryDirectory() as folder:
        aw.sweep(spec_of("lab/toy-mdm", 2, 16), Path(folder) / "warm", workers=0)
        begun = time.process_time()
        for seed in range(cells):
            aw.run(model, PROMPT, how, seed=seed).write(Path(folder) / f"{seed}.trace")
        plain = time.process_time() - begun
        loaded = time.process_time()
        aw.sweep(spec_of("lab/toy-mdm", 1, 16), Path(folder) / "start", workers=0)
        start = time.process_time() - loaded - plain / cells
        begun = time.process_time()
        aw.sweep(spec_of("lab/toy-mdm", cells, 16), Path(folder) / "runs", workers=0)
        swept = time.process_time() - begun - start
    each = 1000 * (swept - plain) / cells
    return {"ms_per_cell": each, "limit": OVERHEAD_MS, "cell_ms": 1000 * plain / cells}


def speedup(cells):
    """Cells of a second of one worker and of two, from the first cell's end to the last one's."""
    rates = []
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            aw.sweep(spec_of("lab/toy-mdm", cells, 64), folder, workers=workers)
            lines = list(open_cells(folder).journal())
        # From when every worker has ended a cell: loading is over.
        ends = sorted(line["when"] for line in lines if line["event"] == "done")
        ready = ends[workers]
        rates.append(sum(end > ready for end in ends) / (ends[-1] - ready))
    return {"ratio": rates[1] / rates[0], "limit": SPEEDUP, "cells_per_s": rates}


def listing(cells):
    """Seconds for each look at a folder of so many cells, whose traces are left out."""
    fields = spec_of("lab/toy-mdm", cells // 100, 16)
    fields["prompts"] = [f"prompt {i}" for i in range(100)]
    axes = read_axes(spec_from(fields))
    keys = make_keys(axes, ["f"], {"anchorwatch": "1"})
    took = {}

    def timed(name, act):
        begun = time.process_time()
        value = act()
        took[name] = time.process_time() - begun
        return value

    with tempfile.TemporaryDirectory() as path:
        folder = open_cells(path, create=True)
        record = sweep_record(axes, keys, ["f"])
        folder.put_sweep(record, digest_of(record)[:32])
        numbers = {"steps": 16, "positions": 40, "left_masked": 0, "bytes": 9, "trace": "0" * 64}
        for cell in itertools.islice(keys.cells(), cells):
            labels = {"model": "lab/toy-mdm", "prompt": axes.prompts[cell.prompt].label}
            labels |= {"context": "", "decoding": "d", "edit": "none", "seed": cell.seed}
            content = {"cell": cell.name, "labels": labels, "deciding": {}, "answer": "Oslo"}
            target = Path(path) / "cells" / cell.name
            target.mkdir()
            (target / "cell.json").write_bytes(seal(content | numbers))
        timed("first index, every cell read", lambda: build_index(folder))
        timed("status", lambda: read_status(path))
        runs = timed("open_runs", lambda: open_runs(path))
        shown = timed("explorer, first page", lambda: RunFolder(runs, Options()))
        timed("explorer, filter", lambda: shown.page("prompt 17 oslo", 1))
    return {"seconds": took, "limit": LIST_S}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("overhead", "speedup", "listing"))
    parser.add_argument("--cells", type=int, default=100_000, help="Cells that are listed.")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    numbers = {}
    if given.only in (None, "overhead"):
        numbers["overhead"] = overhead(40)
    if given.only in (None, "speedup"):
        numbers["speedup"] = speedup(40)
    if given.only in (None, "listing"):
        numbers["listing"] = listing(given.cells)
    if given.json:
        print(json.dumps(numbers, indent=1))
        return
    if "overhead" in numbers:
        value = numbers["overhead"]
        print(
            f"overhead   {value['ms_per_cell']:8.1f} ms of CPU a cell  limit {OVERHEAD_MS:g} ms "
            f"(5 % of 1 s); a cell here takes {value['cell_ms']:.0f} ms"
        )
    if "speedup" in numbers:
        value = numbers["speedup"]
        print(f"two workers{value['ratio']:8.2f} x one                limit {SPEEDUP:g} x")
    for name, seconds in numbers.get("listing", {}).get("seconds", {}).items():
        print(f"{given.cells:,} cells, {name:<30}{seconds:8.2f} s of CPU  limit {LIST_S:g} s")


if __name__ == "__main__":
    main()
