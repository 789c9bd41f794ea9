"""Draw docs/tales.svg from docs/tales.json: `python docs/tales.py`.

The JSON is what `recipes/measure_specimens.py --held-out 12` wrote of the snapshots of tales-mdm
and tales-sink: what becomes of a sink when an autoregressive model turns into a diffusion model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from anchorwatch.figures.style import NULL, PAGE, PALETTE

HERE = Path(__file__).parent
LAYERS = {
    "tales-arm": ("clear", "autoregressive"),
    "tales-mdm@0": ("noisy", "looks both ways, not trained"),
    "tales-mdm@20": ("noisy", "20 updates"),
    "tales-mdm@600": ("noisy", "600 updates"),
    "tales-sink@600": ("noisy", "600 updates, sink token"),
}
CURVES = {
    "pos0": "heads whose top key is the first token",
    "above": "heads whose top key has a share above 0.3",
    "value": "value norm of strong keys over the others'",
}


def main() -> None:
    measures = json.loads((HERE / "tales.json").read_text())
    plt.rcParams.update({"font.size": 7, "svg.hashsalt": "tales", "svg.fonttype": "none"})
    figure, panels = plt.subplots(2, 2, figsize=(PAGE, 4.4), layout="constrained")
    draw_layers(panels[0, 0], measures)
    for axes, (name, label) in zip(panels.flat[1:], CURVES.items(), strict=True):
        draw_curves(axes, measures, name, label)
    panels[0, 1].legend(frameon=False, fontsize=6)
    figure.savefig(HERE / "tales.svg", metadata={"Date": None})


def draw_layers(axes: Axes, measures: dict[str, Any]) -> None:
    """Share of the top key by layer, before, during and after."""
    for colour, (name, (way, label)) in zip(PALETTE, LAYERS.items(), strict=False):
        axes.plot(measures[name][way]["by_layer"], color=colour, label=label, marker=".")
    axes.axhline(measures["tales-mdm@0"]["noisy"]["null"], color=NULL, ls=":", label="even")
    axes.set(xlabel="layer", ylabel="share of the top key, mean over heads", ylim=(0, None))
    axes.legend(frameon=False, fontsize=6)


def draw_curves(axes: Axes, measures: dict[str, Any], name: str, label: str) -> None:
    """A measure over updates with its interval over stories; the ARM as a line."""
    for colour, arm in ((PALETTE[2], "tales-mdm"), (PALETTE[3], "tales-sink")):
        rows = sorted(
            (int(key.split("@")[1]), row["noisy"])
            for key, row in measures.items()
            if key.startswith(f"{arm}@")
        )
        rows = [(update, row) for update, row in rows if row["interval"][name][0] is not None]
        updates = [update for update, _ in rows]
        axes.plot(updates, [row[name] for _, row in rows], color=colour, marker=".", label=arm)
        low, high = zip(*(row["interval"][name] for _, row in rows), strict=True)
        axes.fill_between(updates, low, high, color=colour, alpha=0.2, lw=0)
    axes.axhline(measures["tales-arm"]["clear"][name], color=PALETTE[0], ls="--", label="tales-arm")
    axes.set_xscale("symlog", linthresh=2)
    axes.set(xlabel="update", ylabel=label, ylim=(0, None))


if __name__ == "__main__":
    main()
