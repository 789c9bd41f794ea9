"""Draw docs/tales.svg from docs/tales.json: `python docs/tales.py`.

The JSON is what `recipes/measure_specimens.py --held-out 12` wrote of the snapshots of tales-mdm,
tales-sink and tales-gate: what becomes of a sink when an autoregressive model turns into a
diffusion model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from anchorwatch.figures.style import NULL, PAGE, PALETTE

HERE = Path(__file__).parent
LAYERS = {
    "tales-arm": ("clear", "autoregressive"),
    "tales-mdm@0": ("noisy", "looks both ways, not trained"),
    "tales-mdm@20": ("noisy", "20 updates"),
    "tales-mdm@2400": ("noisy", "2,400 updates"),
    "tales-sink@2400": ("noisy", "2,400 updates, sink token"),
}
CURVES = {
    "pos0": "heads that rest on the first token",
    "above": "heads with a key above 0.3",
    "moves": "moves of the top key, per step",
}
SEEDS = (1, 2)
"""Other training seeds of the first part of tales-mdm, up to update 320."""
TICKS = (0, 2, 10, 40, 160, 600, 2400)


def main() -> None:
    measures = json.loads((HERE / "tales.json").read_text())
    plt.rcParams.update({"font.size": 7, "svg.hashsalt": "tales", "svg.fonttype": "none"})
    figure, panels = plt.subplots(2, 2, figsize=(PAGE, 4.4), layout="constrained")
    draw_layers(panels[0, 0], measures)
    for axes, (name, label) in zip(panels.flat[1:], CURVES.items(), strict=True):
        draw_curves(axes, measures, name, label)
    panels[0, 1].legend(frameon=False, fontsize=6, loc="upper right", bbox_to_anchor=(1, 0.93))
    figure.savefig(HERE / "tales.svg", metadata={"Date": None})


def draw_layers(axes: Axes, measures: dict[str, Any]) -> None:
    """Share of the top key by layer, before, during and after."""
    for colour, (name, (way, label)) in zip(PALETTE, LAYERS.items(), strict=False):
        axes.plot(measures[name][way]["by_layer"], color=colour, label=label, marker=".")
    axes.axhline(measures["tales-mdm@0"]["noisy"]["null"], color=NULL, ls=":", label="even")
    axes.set(xlabel="layer", ylabel="share of the top key", ylim=(0, None))
    axes.legend(frameon=False, fontsize=6)


def draw_curves(axes: Axes, measures: dict[str, Any], name: str, label: str) -> None:
    """A measure over updates with its interval over stories; the ARM as a line."""
    for colour, arm in zip(PALETTE[2:], ("tales-mdm", "tales-sink", "tales-gate"), strict=False):
        updates, values, low, high = read_curve(measures, arm, name)
        axes.plot(updates, values, color=colour, marker=".", label=arm)
        axes.fill_between(updates, low, high, color=colour, alpha=0.2, lw=0)
    for seed in SEEDS:
        updates, values, _, _ = read_curve(measures, f"tales-mdm-seed{seed}", name)
        label_once = "tales-mdm, other seeds" if seed == SEEDS[0] else None
        axes.plot(updates, values, color=PALETTE[2], lw=0.7, ls="--", label=label_once)
    level, _, _ = read_measure(measures["tales-arm"], name)
    axes.axhline(level, color=PALETTE[0], ls="--", label="tales-arm")
    axes.set_xscale("symlog", linthresh=2)
    axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="update", ylabel=label, ylim=(0, None), xlim=(-0.2, 2800))


def read_curve(measures: dict[str, Any], arm: str, name: str) -> list[tuple[float, ...]]:
    """Updates, values, lower and upper ends of a measure, over the snapshots of a run."""
    rows = sorted(
        (int(key.split("@")[1]), *read_measure(row, name))
        for key, row in measures.items()
        if key.startswith(f"{arm}@")
    )
    return list(zip(*rows, strict=True))


def read_measure(row: dict[str, Any], name: str) -> tuple[float, float, float]:
    """Value and interval of a measure; moves are of writing, the others of one pass."""
    if name == "moves":
        return row["moves"]["value"], row["moves"]["low"], row["moves"]["high"]
    way = row["clear"] if "clear" in row else row["noisy"]
    return way[name], *way["interval"][name]


if __name__ == "__main__":
    main()
