"""Draws the pictures of docs/concepts.md from runs of the tales: `make figures`."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import anchorwatch as aw
from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.trace.trace import Trace

FOLDER = Path(__file__).parent / "concepts"
PROMPT = "Once upon a time, there was a little girl named Lily. She"
LENGTH = 24


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    mdm, arm = aw.load("lab/tales-mdm"), aw.load("lab/tales-arm")
    fills = aw.run(mdm, PROMPT, aw.decoding.LowConfidence(length=LENGTH, steps=LENGTH))
    writes = aw.run(arm, PROMPT, aw.decoding.LeftToRight(length=LENGTH, stop=False))
    draw_null({"autoregressive": writes, "masked diffusion": fills}).savefig(
        FOLDER / "null.png", dpi=150
    )
    rule = aw.rules.rulli(eps=3)
    aw.figures.sink_map(writes, layer=6, rule=rule).save(FOLDER / "sink-stays.png")
    layer, head = find_restless_head(fills)
    aw.figures.sink_map(fills, layer=layer, head=head, rule=rule).save(FOLDER / "sink-moves.png")


def find_restless_head(trace: Trace) -> tuple[int, int]:
    """(layer, head) whose top key changes most; a change counts by what the new key receives."""
    shares = trace["received"].sel(group="all")  # step, layer, head, key
    top, share = shares.argmax("key").values, shares.max("key").values
    moved = ((top[1:] != top[:-1]) * share[1:]).sum(axis=0)
    return divmod(int(moved.argmax()), moved.shape[1])


def draw_null(traces: dict[str, Trace]) -> plt.Figure:
    """What each token receives at the last step, mean over layers and heads, beside its null."""
    plt.rcParams.update({"font.size": 8})
    figure, axes = plt.subplots(2, 1, figsize=(6.5, 4.2), layout="constrained")
    for ax, (name, trace) in zip(axes, traces.items(), strict=True):
        layers = list(iter_layers(trace))
        shares = np.mean([layer.shares("all")[-1].mean(axis=0) for layer in layers], axis=0)
        null = np.mean([layer.null("all")[-1].mean(axis=0) for layer in layers], axis=0)
        words = [trace.token(int(token)).replace("▁", "") for token in trace.canvas[-2]]
        place = np.arange(len(shares))
        ax.bar(place, shares, color="#56B4E9", label="received")
        ax.step(place, null, where="mid", color="#D55E00", label="null: uniform attention")
        ax.set_xticks(place, words, rotation=90)
        ax.set(title=name, ylabel="share", xlim=(-0.6, len(shares) - 0.4))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    return figure


if __name__ == "__main__":
    main()
