"""What a training update costs: beside a bare loop, and with a sink token by two forms.

A ratio is the median over turns of the ratio within a turn, so that a busy machine slows both. The
published form of a sink token is one more position and a dense mask; ours adds a key.

    python benchmarks/training.py [--updates 20] [--length 512]
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
from anchorwatch.training.corpora import build_batch_builder
from anchorwatch.training.loop import Trainer
from anchorwatch.training.networks import build_start
from anchorwatch.training.spec import from_dict
from toy_texts import Texts, fields, tokenizer

WORDS, LENGTH, BATCH = 1024, 128, 32
SHAPE = {"layers": 4, "width": 128, "heads": 4, "hidden": 352}


class Bare:
    """The least loop there can be: forward, backward, clip, AdamW, on rows made beforehand."""

    def __init__(self, spec, words, texts):
        self.begun = build_start(spec, words)
        self.poser, self.texts, self.spec = build_batch_builder(spec, self.begun), texts, spec
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
        self.trainer = Trainer(spec, out, build_start(spec, words), texts, Accelerator(cpu=True))

    def __call__(self, update):
        self.trainer._train_update(next(self.trainer.loader))


class Dense(Ours):
    """The published sink token: in the sequence, under a mask of (T + 1)^2, by stock attention."""

    def __init__(self, spec, words, texts, out):
        super().__init__(spec, words, texts, out)
        network = self.trainer.begun.network
        network.set_attn_implementation("sdpa")
        sink = torch.nn.Parameter(network.model.embed_tokens.weight.detach().mean(0, keepdim=True))
        self.trainer.optimizer.add_param_group({"params": [sink], "weight_decay": 0.0})
        mask = torch.ones(spec.length + 1, spec.length + 1, dtype=torch.bool)
        mask[0, 1:] = False

        def scored(canvas, real, predictors, targets):
            tokens = network.model.embed_tokens(canvas)
            tokens = torch.cat([sink.expand(len(tokens), 1, -1), tokens], dim=1)
            states = network.model(
                inputs_embeds=tokens,
                attention_mask=mask[None, None].expand(len(tokens), 1, -1, -1),
                use_cache=False,
            )[0][:, 1:]
            logits = network.lm_head(states.flatten(0, 1).index_select(0, predictors))
            return torch.nn.functional.cross_entropy(logits, targets, reduction="none")

        self.trainer.scorer.forward = scored


def timed(loops, updates):
    """[loop][turn] seconds of an update; turns begin with another loop each, two do not count."""
    taken: dict[str, list[float]] = {name: [] for name in loops}
    names = list(loops)
    for update in range(updates + 2):
        first = update % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            loops[name](update)
            taken[name].append(time.perf_counter() - began)
    return {name: times[2:] for name, times in taken.items()}


def show(taken, length, batch):
    first = next(iter(taken.values()))
    print(f"{f'update of {batch} x {length} tokens':<28}{'ms':>8}{'tok/s':>9}{'ratio':>8}")
    for name, times in taken.items():
        middle = statistics.median(times)
        ratio = statistics.median(one / other for one, other in zip(times, first, strict=True))
        print(f"{name:<28}{middle * 1e3:8.1f}{batch * length / middle:9.0f}{ratio:8.3f}")


def loop_table(updates, folder):
    words, texts = tokenizer(WORDS), Texts(4096, LENGTH, WORDS, ragged=False)
    ragged = Texts(4096, LENGTH, WORDS, ragged=True)
    said = fields(model=SHAPE, length=LENGTH, batch=BATCH, updates=10 * updates)
    spec, gated = from_dict(said), from_dict(said | {"variant": ["gate"]})
    loops = {
        "bare loop": Bare(spec, words, texts),
        "vanilla": Ours(spec, words, texts, folder),
        "vanilla, padded rows": Ours(spec, words, ragged, folder),
        "gate": Ours(gated, words, texts, folder),
    }
    show(timed(loops, updates), LENGTH, BATCH)


def sink_table(updates, length, folder):
    batch = max(1, BATCH * LENGTH // length)
    words, texts = tokenizer(WORDS), Texts(4096, length, WORDS, ragged=False)
    said = fields(model=SHAPE, length=length, batch=batch, updates=10 * updates)
    spec, sunk = from_dict(said), from_dict(said | {"variant": ["sink_token"]})
    loops = {
        "vanilla": Ours(spec, words, texts, folder),
        "sink token": Ours(sunk, words, texts, folder),
        "sink token, dense mask": Dense(spec, words, texts, folder),
    }
    show(timed(loops, updates), length, batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--length", type=int, default=512, help="of the rows with a sink token")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, checkpoints.claim_folder(Path(folder), {}):
        loop_table(given.updates, Path(folder))
        print()
        sink_table(given.updates, given.length, Path(folder))


if __name__ == "__main__":
    main()
