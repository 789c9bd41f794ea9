"""What a person waits for before anything is shown, beside what we promise: part of `make bench`.

`anchorwatch --help` from nothing, and as a multiple of a bare Python's start; loading each model
that ships, and as a multiple of loading a tiny one; one run of 64 steps with the default probes,
and as a multiple of the same without. Numbers are the best of several turns, and only printed.
`--floor` measures instead what a run's start is made of, in CPU seconds, and keeps it in
docs/benchmarks.json.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import anchorwatch as aw
from anchorwatch.models.zoo import NAMES
from anchorwatch.training import card_measures as measure

HELP_S, LOAD_S, RUN_S = 0.4, 2.0, 15.0
ENV = os.environ | {"HF_HUB_OFFLINE": "1"}


def best(act, turns):
    """The shortest of several turns, in seconds."""
    times = []
    for _ in range(turns):
        begun = time.perf_counter()
        act()
        times.append(time.perf_counter() - begun)
    return min(times)


def say(what, seconds, limit, beside, base):
    over = "" if seconds < limit else "  OVER"
    ratio = seconds / base
    print(
        f"  {what:<28}{seconds:>8.2f} s  limit {limit:g} s{over}  {ratio:.1f}x {beside}", flush=True
    )
    return {"seconds": seconds, "limit": limit, "ratio": ratio, "of": beside}


def typed(*words):
    subprocess.run(words, capture_output=True, env=ENV, check=True)


def help_row(turns):
    command = str(Path(sys.executable).with_name("anchorwatch"))
    bare = best(lambda: typed(sys.executable, "-c", "pass"), turns)
    seconds = best(lambda: typed(command, "--help"), turns)
    return say("anchorwatch --help", seconds, HELP_S, "a bare Python", bare)


def load_row(name, turns):
    tiny = best(lambda: aw.load("tiny/llada"), turns)
    return say(f"load {name}", best(lambda: aw.load(name), turns), LOAD_S, "tiny/llada", tiny)


def run_row(name, turns):
    model = aw.load(name)
    kind = aw.decoding.LeftToRight if name == "lab/toy-arm" else aw.decoding.LowConfidence
    prompt, decoding = measure.CONTEXTS["gold"][0][0].prompt(), kind(length=64)
    plain = best(lambda: aw.run(model, prompt, decoding, probes=()), turns)
    seconds = best(lambda: aw.run(model, prompt, decoding), turns)
    return say(f"run {name}, 64 steps", seconds, RUN_S, "without probes", plain)


FLOOR = {
    "torch": ("-c", "import torch"),
    "a stock class of transformers": ("-c", "from transformers import LlamaForCausalLM"),
    "that, xarray and zarr": (
        "-c",
        "from transformers import AutoTokenizer, LlamaForCausalLM; import xarray, zarr",
    ),
    "anchorwatch run tiny/llada, 4 steps": (
        *("-m", "anchorwatch", "run", "tiny/llada", "the anchor", "--length", "4"),
    ),
}
"""What a run cannot start without, each with what stands before it."""


def floor_rows(turns):
    """CPU seconds of each, the least of several turns."""
    rows = {}
    for name, words in FLOOR.items():
        times = []
        for _ in range(turns):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            typed(sys.executable, *words)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        rows[name] = min(times)
        print(f"  {name:<40}{rows[name]:8.2f} s of CPU", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/start.json"))
    parser.add_argument("--floor", action="store_true")
    given = parser.parse_args()
    if given.floor:
        page = Path(__file__).parents[1] / "docs" / "benchmarks.json"
        kept = json.loads(page.read_text()) if page.exists() else {}
        page.write_text(json.dumps(kept | {"start": floor_rows(given.turns)}, indent=1) + "\n")
        return
    aw.load("tiny/llada")  # imports are not loading
    rows = {"help": help_row(given.turns)}
    rows |= {f"load {name}": load_row(name, given.turns) for name in NAMES}
    rows |= {f"run {name}": run_row(name, given.turns) for name in NAMES}
    given.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
