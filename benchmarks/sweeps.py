"""What a sweep costs beyond its runs, each number beside its limit: `make bench-sweeps`.

1. Overhead: CPU seconds of a cell in a sweep in this process against `aw.run(...).write` in a loop.
   The limit, 5 % at 1 s a cell, is stated as milliseconds of overhead.
2. Speed-up: cells of a second of two one-thread workers against one, start-up left out: by the
   clock, which needs two quiet cores, and less the time that workers waited for a core.
3. Listing: seconds to index, count, open and filter 100,000 cells.
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import anchorwatch as aw
from anchorwatch.explorer.run_data import Options
from anchorwatch.explorer.run_list import ListQuery, RunFolder
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


@dataclass(frozen=True)
class Sample:
    """Where a worker is: seconds of the clock, of waiting for a core, and cells done."""

    clock: float
    waited: float
    done: int


class Watch:
    """Called after each outcome: reads how far each worker is, and how long it waited for a core.

    The kernel counts the waiting (/proc/PID/schedstat), so that the time a worker would take on
    free cores is known on a busy machine, too: the clock less the waiting.
    """

    def __init__(self, folder):
        self._journals = Path(folder) / "journal"
        self._first, self._last = {}, {}

    def __call__(self, _):
        for journal in self._journals.iterdir():
            done = journal.read_text().count('"event": "done"')
            try:
                schedule = Path(f"/proc/{journal.stem.split('-')[-2]}/schedstat").read_text()
            except OSError:
                continue
            if done:  # loading is over
                sample = Sample(time.monotonic(), int(schedule.split()[1]) / 1e9, done)
                self._first.setdefault(journal.stem, sample)
                self._last[journal.stem] = sample

    def rates(self):
        """Cells of a second of all workers: by the clock, and on free cores."""
        pairs = [(self._first[name], self._last[name]) for name in self._first]
        clock = sum((b.done - a.done) / (b.clock - a.clock) for a, b in pairs)
        free = sum(
            (b.done - a.done) / (b.clock - a.clock - (b.waited - a.waited)) for a, b in pairs
        )
        return clock, free


def speedup(cells):
    """Cells of a second of one worker and of two; the driver's share of a core, which they share.

    On free cores two workers and the driver have two cores: what the driver takes is theirs.
    """
    clock, free, driver = [], [], []
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            watch = Watch(folder)
            begun = time.process_time()
            aw.sweep(
                spec_of("lab/toy-mdm", cells * workers, 64),
                folder,
                workers=workers,
                on_outcome=watch,
            )
            each = (time.process_time() - begun) / (cells * workers)
        rates = watch.rates()
        clock.append(rates[0])
        free.append(rates[1])
        driver.append(each)
    # One worker leaves a core to the driver; two give up what the driver takes of two cores.
    shared = free[1] / (1 + driver[1] * free[1] / 2)
    return {
        "ratio": shared / free[0],
        "limit": SPEEDUP,
        "ratio_by_clock": clock[1] / clock[0],
        "cells_per_s_on_free_cores": free,
        "cells_per_s_by_clock": clock,
        "driver_ms_per_cell": [1000 * each for each in driver],
        "load": os.getloadavg()[0],
    }


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
        timed("explorer, filter", lambda: shown.page(ListQuery("prompt 17 oslo")))
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
        numbers["speedup"] = speedup(20)
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
        print(
            f"two workers{value['ratio']:8.2f} x one on free cores  limit {SPEEDUP:g} x; by the "
            f"clock {value['ratio_by_clock']:.2f} x at a load of {value['load']:.1f}"
        )
    for name, seconds in numbers.get("listing", {}).get("seconds", {}).items():
        print(f"{given.cells:,} cells, {name:<30}{seconds:8.2f} s of CPU  limit {LIST_S:g} s")


if __name__ == "__main__":
    main()
