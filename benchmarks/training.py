"""What a training update costs beside a bare loop, and beside one with its parts, in one run.

Ratios are of medians over updates that take turns, so that a busy machine slows both alike.

    python benchmarks/training.py [--updates 20]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from accelerate import Accelerator

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from anchorwatch.training import checkpoints
from anchorwatch.training.feed import poser_of
from anchorwatch.training.loop import Trainer
from anchorwatch.training.networks import start
from anchorwatch.training.spec import from_dict
from toy_texts import Texts, fields, tokenizer

WORDS, LENGTH, BATCH = 1024, 128, 32
SHAPE = {"layers": 4, "width": 128, "heads": 4, "hidden": 352}


class Bare:
    """The least loop there can be: forward, backward, clip, AdamW, on rows made beforehand."""

    def __init__(self, spec, words, texts):
        self.begun = start(spec, words)
        self.poser, self.texts, self.spec = poser_of(spec, self.begun), texts, spec
        self.optimizer = torch.optim.AdamW(self.begun.network.parameters(), lr=1e-3, fused=True)
        places = range(spec.batch)
        self.rows = [
            self.poser([texts[u * spec.batch + i] for i in places], u, places) for u in range(8)
        ]

    def __call__(self, update):
        rows, network = self.rows[update % 8], self.begun.network
        states = network.model(rows.canvas, use_cache=False)[0]
        logits = network.lm_head(states.flatten(0, 1)[rows.predictors])
        costs = torch.nn.functional.cross_entropy(logits, rows.targets, reduction="none")
        ((costs * rows.weights).sum() / rows.divisor).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Ours:
    """Our loop, rows made as it goes."""

    def __init__(self, spec, words, texts, out):
        self.trainer = Trainer(spec, out, start(spec, words), texts, Accelerator(cpu=True))

    def __call__(self, update):
        self.trainer._one(next(self.trainer.loader))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=20)
    updates = parser.parse_args().updates
    words, texts = tokenizer(WORDS), Texts(4096, LENGTH, WORDS, ragged=False)
    ragged = Texts(4096, LENGTH, WORDS, ragged=True)
    said = fields(model=SHAPE, length=LENGTH, batch=BATCH, updates=10 * updates)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / checkpoints.CHECKPOINTS).mkdir()
        spec = from_dict(said)
        gated = from_dict(said | {"variant": ["gate"]})
        loops = {
            "bare loop": Bare(spec, words, texts),
            "vanilla": Ours(spec, words, texts, Path(folder)),
            "vanilla, padded rows": Ours(spec, words, ragged, Path(folder)),
            "gate": Ours(gated, words, texts, Path(folder)),
        }
        taken: dict[str, list[float]] = {name: [] for name in loops}
        for update in range(updates + 2):
            for name, loop in loops.items():
                began = time.perf_counter()
                loop(update)
                taken[name].append(time.perf_counter() - began)
    bare = statistics.median(taken["bare loop"][2:])
    print(f"{'update of 32 x 128 tokens':<28}{'ms':>8}{'tok/s':>9}{'ratio':>8}")
    for name, times in taken.items():
        middle = statistics.median(times[2:])
        print(f"{name:<28}{middle * 1e3:8.1f}{BATCH * LENGTH / middle:9.0f}{middle / bare:8.3f}")


if __name__ == "__main__":
    main()
