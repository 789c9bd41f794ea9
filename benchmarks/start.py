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


PARTS = {
    "torch": ["torch"],
    "transformers": ["transformers"],
    "its base class: torch.distributed.tensor": ["torch.distributed.tensor"],
    "its base class: accelerate": ["accelerate"],
    "its base class: torch._dynamo": ["torch._dynamo"],
    "its base class: scipy.optimize": ["scipy.optimize"],
    "its base class: the rest": ["transformers.modeling_utils"],
    "a stock class": ["transformers.models.llama.modeling_llama"],
    "xarray, zarr": ["xarray", "zarr"],
    "typer, rich": ["typer", "rich"],
    "anchorwatch": ["anchorwatch.cli.app", "anchorwatch.models.load", "anchorwatch.generation.run"],
}
"""What a run imports, in an order in which nothing is counted twice."""

IMPORTS = """
import importlib, json, sys, time
parts, rows = json.loads(sys.argv.pop(1)), {}
seconds, modules = time.process_time(), len(sys.modules)
def take(name):
    global seconds, modules
    now = time.process_time(), len(sys.modules)
    rows[name] = {"seconds": now[0] - seconds, "modules": now[1] - modules}
    seconds, modules = now
for name, imported in parts.items():
    for module in imported:
        importlib.import_module(module)
    take(name)
from anchorwatch.cli.app import main
try:
    main()
finally:
    take("load tiny/llada, 4 steps")
    sys.stderr.write("\\n" + json.dumps(rows))
"""


def floor_rows(turns):
    """CPU seconds and modules of each part of a run's start, the least of several turns."""
    rows = {}
    words = ("run", "tiny/llada", "the anchor", "--length", "4")
    for _ in range(turns):
        done = subprocess.run(
            [sys.executable, "-c", IMPORTS, json.dumps(PARTS), *words],
            capture_output=True,
            text=True,
            env=ENV,
            check=True,
        )
        for name, row in json.loads(done.stderr.splitlines()[-1]).items():
            rows[name] = min(rows.get(name, row), row, key=lambda each: each["seconds"])
    for name, row in rows.items():
        print(f"  {name:<44}{row['seconds']:8.2f} s of CPU {row['modules']:6} modules", flush=True)
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
