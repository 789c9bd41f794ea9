"""Draw docs/specimens.svg from docs/specimens.json: `python docs/specimens.py`.

The JSON is what recipes/measure_specimens.py wrote of the snapshots of both adaptations.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt

from anchorwatch.figures.style import NULL, PAGE, PALETTE

HERE = Path(__file__).parent
LAYERS = {
    "smol-arm": ("clear", "autoregressive: mostly the first token"),
    "smol-mdm@0": ("noisy", "looks both ways, not trained: the first “ the”"),
    "smol-mdm@760": ("noisy", "diffusion model, 395 k + 162 k tokens: the full stop"),
    "smol-sink@80": ("noisy", "with a sink token, 72 k tokens"),
}


def main() -> None:
    measures = json.loads((HERE / "specimens.json").read_text())
    plt.rcParams.update({"font.size": 7, "svg.hashsalt": "specimens", "svg.fonttype": "none"})
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(PAGE, 2.6), width_ratios=[3, 2], layout="constrained"
    )
    for colour, (name, (way, label)) in zip(PALETTE, LAYERS.items(), strict=False):
        left.plot(measures[name][way]["by_layer"], color=colour, label=label, marker=".")
    left.axhline(
        measures["smol-mdm@0"]["noisy"]["null"], color=NULL, ls=":", label="even attention"
    )
    left.set(xlabel="layer", ylabel="share of the top key, mean over heads", ylim=(0, 1))
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside upper left",
        ncols=3,
        fontsize=6,
        frameon=False,
    )
    runs = ((PALETTE[2], "smol-mdm"), (PALETTE[3], "smol-sink"), (PALETTE[4], "smol-stories"))
    for colour, arm in runs:
        rows = sorted(
            (int(name.split("@")[1]), row["noisy"])
            for name, row in measures.items()
            if name.startswith(f"{arm}@")
        )
        updates = [update for update, _ in rows]
        right.plot(updates, [row["above"] for _, row in rows], color=colour, marker=".", label=arm)
        low, high = zip(*(row["range"]["above"] for _, row in rows), strict=True)
        right.fill_between(updates, low, high, color=colour, alpha=0.2, lw=0)
    for seed in (1, 2):  # other training seeds of the first 80 updates
        rows = sorted(
            (int(name.split("@")[1]), row["noisy"]["above"])
            for name, row in measures.items()
            if name.startswith(f"smol-mdm-seed{seed}@")
        )
        label = "smol-mdm, other seeds" if seed == 1 else None
        right.plot(*zip(*rows, strict=True), color=PALETTE[2], lw=0.7, ls="--", label=label)
    right.axhline(
        measures["smol-arm"]["clear"]["above"], color=PALETTE[0], ls="--", label="smol-arm"
    )
    right.set(xlabel="update", ylabel="heads with a key above 0.3", ylim=(0, 1))
    right.legend(frameon=False, fontsize=6, loc="lower right")
    figure.savefig(HERE / "specimens.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
