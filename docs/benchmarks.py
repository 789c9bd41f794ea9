"""Draw docs/benchmarks.svg and the tables of docs/benchmarks.md from docs/benchmarks.json.

`make bench-peers`, `make bench-decoding` and `python benchmarks/start.py --floor` measure.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from anchorwatch.figures.style import NULL, PAGE, PALETTE

HERE = Path(__file__).parent
ARMS = ("anchorwatch", "HF eager", "nnsight", "nnterp", "TransformerLens", "recomputed")
LOOKS = {
    "plain": ("x", NULL),
    "anchorwatch": ("o", PALETTE[0]),
    "received": ("o", PALETTE[0]),
    "HF eager": ("s", PALETTE[1]),
    "TransformerLens": ("^", PALETTE[2]),
}
BEFORE = {"1024": "1.10", "2048": "1.14"}
"""The default set before tiles were batched over heads and exponentials of base 2, by length."""
AXES = {"T": "positions T", "layers": "layers", "batch": "batch", "steps": "steps of a run"}


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f}"


def times_table(received: dict[str, Any]) -> str:
    """How many times our CPU time each tool takes, and the share of attention."""
    rows = []
    for name, cell in received.items():
        if "attention_share" not in cell:  # memory alone was measured
            continue
        ratios = [f"{cell['rows'][arm]['times_ours']:.2f}" for arm in ARMS[1:]]
        seconds = f"{cell['rows']['anchorwatch']['seconds']:.3f}"
        plain = f"{1 / cell['rows']['plain']['times_ours']:.2f}"
        rows.append([name, f"{cell['attention_share']:.2f}", seconds, plain, *ratios])
    head = ["shape", "attention in eager", "anchorwatch, s", "times plain", *ARMS[1:]]
    return table(head, rows)


def attention_table(attention: dict[str, Any]) -> str:
    """One layer's attention without linear layers: milliseconds, and quartiles of the ratio."""
    rows = []
    for shape, cell in attention.items():
        spent = [f"{1e3 * row['seconds']:.1f}" for row in cell["rows"].values()]
        low, middle, high = cell["rows"]["HF eager"]["times_ours"]
        rows.append([shape, *spent, f"{middle:.2f} [{low:.2f}, {high:.2f}]"])
    return table(["shape", "plain, ms", "anchorwatch, ms", "HF eager, ms", "HF eager"], rows)


def memory_table(received: dict[str, Any]) -> str:
    """MB above a plain pass, and the largest relative error of each arm."""
    rows = []
    for name, cell in received.items():
        peaks = [megabytes(cell["rows"][arm]["above_plain"]) for arm in ARMS]
        kept = [megabytes(cell["rows"][arm]["kept"]) for arm in ("anchorwatch", "HF eager")]
        errors = [cell["rows"][arm]["error"] for arm in ("anchorwatch", "HF eager")]
        rows.append([name, *peaks, *kept, *(f"{error:.0e}" for error in errors)])
    head = ["shape", *ARMS, "kept, ours", "kept, HF", "error, ours", "error, HF"]
    return table(head, rows)


def growth_table(growth: dict[str, Any]) -> str:
    rows = []
    for axis, cell in growth.items():
        for name, row in cell.items():
            if name == "facts":
                continue
            memory = row.get("memory_exponent")
            made = row.get("bytes_made_exponent")
            sizes = f"{row['size'][0]} to {row['size'][-1]}"
            peaks = f"{megabytes(row['above_plain'][0])} to {megabytes(row['above_plain'][-1])}"
            exponents = ["" if value is None else f"{value:.2f}" for value in (memory, made)]
            time = f"{row['time_exponent']:.2f}" if "time_exponent" in row else "not measured"
            rows.append([AXES[axis], name, sizes, time, peaks, *exponents])
    head = ["against", "", "from, to", "exponent of time", "MB", "of memory", "of bytes allocated"]
    return table(head, rows)


def likelihood_table(likelihood: dict[str, Any]) -> str:
    rows = []
    for model, cell in likelihood.items():
        for name, row in cell["rows"].items():
            times = f"{row['times_ours']:.2f}"
            rows.append([model, name, f"{row['seconds']:.3f}", times, f"{row['gap']:.1e}"])
    return table(["model", "tool", "seconds", "times ours", "largest gap, nats"], rows)


def start_table(start: dict[str, Any]) -> str:
    spent = sum(row["seconds"] for row in start.values())
    modules = sum(row["modules"] for row in start.values())
    rows = [[name, f"{row['seconds']:.2f}", str(row["modules"])] for name, row in start.items()]
    return table(["", "CPU seconds", "modules"], [*rows, ["all", f"{spent:.2f}", str(modules)]])


def probes_table(probes: dict[str, Any]) -> str:
    """What the default probes cost, as a multiple of the unwatched run."""
    rows = []
    for length, arms in probes["layer"].items():
        ratios = [f"{arms[name]['ratio']:.3f}" for name in ("received", "default")]
        rows.append([f"LLaDA-8B's layer shape, T = {length}", *ratios, "", BEFORE.get(length, "")])
    for name, arms in probes["tiny"].items():
        ratios = [f"{arms[arm]['ratio']:.2f}" for arm in ("default", "every 4th step")]
        rows.append([f"{name}, 32 steps, T = 96", "", *ratios, "2.8 to 3.1"])
    return table(["", "received", "default set", "default, every 4th step", "default before"], rows)


def decoding_table(decoding: dict[str, Any]) -> str:
    passes, ratios = decoding["passes"], decoding["ratios"]
    rows = [["plain", f"{passes['plain']:.2f}", "1", ""]]
    for name, limit in {"exact": "1.3", "dual": "4"}.items():
        rows.append([name, f"{passes[name]:.2f}", f"{ratios[name]:.2f}", limit])
    for model in (name for name in decoding if name.startswith("lab/")):
        rows.append([f"eight together, {model}", "", f"{decoding[model]['batch']:.2f}", "1.5"])
    return table(["", "seconds of a pass", "times plain, or one by one", "limit"], rows)


TABLES = {
    "received": times_table,
    "attention": attention_table,
    "memory": memory_table,
    "growth": growth_table,
    "likelihood": likelihood_table,
    "start": start_table,
    "probes": probes_table,
    "decoding": decoding_table,
}


def put_between(text: str, name: str, content: str) -> str:
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = text.split(start)
    return f"{before}{start}\n\n{content}\n\n{end}{rest.split(end)[1]}"


def draw(growth: dict[str, Any]) -> None:
    """Time above, memory below, one column for each axis."""
    plt.rcParams.update({"font.size": 7, "svg.hashsalt": "benchmarks", "svg.fonttype": "none"})
    figure, panels = plt.subplots(
        2, len(growth), figsize=(PAGE, 3.6), layout="constrained", sharex="col", squeeze=False
    )
    for column, (axis, cell) in enumerate(growth.items()):
        above, below = panels[:, column]
        curves = {name: row for name, row in cell.items() if name != "facts"}
        for name, row in curves.items():
            marker, colour = LOOKS[name]
            look = {"marker": marker, "ms": 3, "lw": 0.9, "color": colour, "label": name}
            if row["seconds"]:
                above.plot(row["size"], row["seconds"], **look)
            if name != "plain" or axis == "steps":
                below.plot(row["size"], [peak / 1e6 for peak in row["above_plain"]], **look)
        above.set(xscale="log", yscale="log", title=AXES[axis])
        below.set_yscale("symlog", linthresh=1)
        below.set_ylim(-0.2, 3000)
        sizes = max((row["size"] for row in curves.values()), key=len)
        below.set_xticks(sizes, [str(size) for size in sizes])
        below.minorticks_off()
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    panels[0, 0].set_ylabel("CPU seconds")
    panels[1, 0].set_ylabel("peak, MB above plain")
    figure.savefig(HERE / "benchmarks.svg", metadata={"Date": None})


def main() -> None:
    measured = json.loads((HERE / "benchmarks.json").read_text())
    page = HERE / "benchmarks.md"
    text = page.read_text()
    for name, build in TABLES.items():
        section = "received" if name == "memory" else name
        if section in measured and f"<!-- {name} -->" in text:
            text = put_between(text, name, build(measured[section]))
    page.write_text(text)
    if "growth" in measured:
        draw(measured["growth"])


if __name__ == "__main__":
    main()
