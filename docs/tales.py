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
COLOURS = dict(zip(("tales-arm", "tales-mdm", "tales-sink", "tales-gate"), PALETTE, strict=False))
"""One for each model, the same in every panel."""
STYLES = {"0": ":", "20": "--", "2400": "-"}
"""Of the first panel, by number of updates."""
LAYERS = (
    "tales-arm",
    "tales-mdm@0",
    "tales-mdm@20",
    "tales-mdm@2400",
    "tales-sink@2400",
    "tales-gate@2400",
)
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
    """Share of the top key by layer: a colour for each model, a line style for its updates."""
    for name in LAYERS:
        model, _, updates = name.partition("@")
        label = f"{model}, {int(updates):,} updates" if updates else model
        share = measures[name]["noisy" if updates else "clear"]["by_layer"]
        style = STYLES.get(updates, "-")
        axes.plot(share, color=COLOURS[model], ls=style, label=label, marker=".")
    null = measures["tales-mdm@0"]["noisy"]["null"]
    axes.axhline(null, color=NULL, ls="-.", lw=0.8, label="even attention")
    axes.set(xlabel="layer", ylabel="share of the top key", ylim=(0, None))
    axes.legend(frameon=False, fontsize=6)


def draw_curves(axes: Axes, measures: dict[str, Any], name: str, label: str) -> None:
    """A measure over updates with its interval over stories; the ARM as a line."""
    for model in ("tales-mdm", "tales-sink", "tales-gate"):
        updates, values, low, high = read_curve(measures, model, name)
        axes.plot(updates, values, color=COLOURS[model], marker=".", label=model)
        axes.fill_between(updates, low, high, color=COLOURS[model], alpha=0.2, lw=0)
    for seed in SEEDS:
        updates, values, _, _ = read_curve(measures, f"tales-mdm-seed{seed}", name)
        label_once = "tales-mdm, other seeds" if seed == SEEDS[0] else None
        axes.plot(updates, values, color=COLOURS["tales-mdm"], lw=0.7, label=label_once)
    level, _, _ = read_measure(measures["tales-arm"], name)
    axes.axhline(level, color=COLOURS["tales-arm"], label="tales-arm")
    axes.set_xscale("symlog", linthresh=2)
    axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="update", ylabel=label, ylim=(0, None), xlim=(-0.2, 2800))


def read_curve(measures: dict[str, Any], model: str, name: str) -> list[tuple[float, ...]]:
    """Updates, values, lower and upper ends of a measure, over the snapshots of a run."""
    rows = sorted(
        (int(key.split("@")[1]), *read_measure(row, name))
        for key, row in measures.items()
        if key.startswith(f"{model}@")
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
