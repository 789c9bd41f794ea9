"""Measure the specimens on held-out stories.

`python recipes/measure_specimens.py OUT.json MODEL...`; what is measured already is kept. With
`--held-out 16` the stories are held-out ones of recipes/stories.jsonl, values get 95 % intervals
over them, and `moves` is measured too: how often a head's top key is another than a step before
while 32 tokens are written in 32 steps, after the first 24 tokens of half of the stories.
NAME=FOLDER gives a model another name in the file. `--answers 40` asks that many held-out
questions, with the gold passage alone and beside a random and a hard distractor.

Each model is measured in one forward pass per story, without decoding. A diffusion model reads the
story with a third of its tokens masked ("noisy"), and its first 24 tokens with 32 masks after them
("write"); an autoregressive model reads the clear story ("clear"). Shares are means over queries;
an added sink token counts as one more key. Values are means over stories; `range` has extremes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anchorwatch as aw
from anchorwatch.training.card_measures import WRITING_PROBES, measure_answers, measure_switches
from anchorwatch.training.data import read_texts

STORIES = (
    "Once upon a time, there was a little girl named Mia. She lived in a small house near the sea. "
    "One day, she found a red ball on the sand. She took it home and showed it to her mom. Her mom "
    "smiled and said it was a nice ball. Mia was very happy.",
    "Tom and his dog Max went to the park. The sun was warm, and the birds were singing. Tom saw a "
    "big tree and wanted to climb it. Max barked at a cat. The cat ran up the tree. Tom laughed "
    "and they all went home together for dinner.",
    "There was an old bear who liked honey. Every morning, he walked to the big tree. But today, "
    "the bees were angry and the honey was gone. The bear was sad. A bird told him to wait until "
    "spring. So the bear went to sleep and dreamed of honey.",
    "In the forest, a small rabbit was looking for his friend. He asked the owl. The owl said that "
    "the friend was at the river. The rabbit ran to the river and found him there. They played in "
    "the water all day and then they went home.",
)
PROBES = (
    aw.probes.received(groups=("all",), dtype="float32"),
    aw.probes.norms(keys=True),
    aw.probes.massive(k=1),
)
STRONG = 0.3
"""A head has a strong sink where its top key receives more than this share."""
MASKED_SHARE, PROMPT, MASKS = 0.35, 24, 32


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--held-out", type=int, default=0)
    parser.add_argument("--answers", type=int, default=0)
    options = parser.parse_args(words)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    stories = read_held_out(options.held_out) if options.held_out else STORIES
    for given in options.models:
        name, _, folder = given.rpartition("=")
        name = name or folder
        if name not in results:
            model = aw.load(folder)
            results[name] = measure(model, stories)
            if options.answers:
                contexts = ("gold", "gold+2")
                results[name]["answers"] = {
                    context: measure_answers(model, context, options.answers)
                    for context in contexts
                }
            options.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
            print(f"{name}: {json.dumps(results[name])[:300]}", file=sys.stderr)


def read_held_out(count: int) -> list[str]:
    """The first held-out stories that no training text repeats, without their last lines."""
    texts = read_texts(Path(__file__).with_name("stories.jsonl")).take_split("held-out").pieces
    return [text[:600] for text in texts if len(text) >= 600][:count]


def measure(model: aw.Model, stories: Sequence[str] = STORIES) -> dict[str, Any]:
    """The measures of one model, by the way it reads the stories."""
    ways = ("clear",) if model.family.kind == "arm" else ("noisy", "write")
    measures: dict[str, Any] = {
        way: summarise([read(model, way, text, n) for n, text in enumerate(stories)])
        for way in ways
    }
    if len(stories) > len(STORIES):
        measures["moves"] = measure_moves(model, stories[: len(stories) // 2])
    return measures


def measure_moves(model: aw.Model, stories: Sequence[str]) -> dict[str, Any]:
    """How often the top key of a head moves while the model writes."""
    prompts = [model.tokenizer(text)["input_ids"][:PROMPT] for text in stories]
    causal = model.family.kind == "arm"
    decoding = aw.decoding.LeftToRight if causal else aw.decoding.LowConfidence
    traces = aw.run_many(model, prompts, decoding(length=MASKS), probes=WRITING_PROBES)
    return measure_switches(traces) | with_interval(
        [measure_switches([trace])["value"] for trace in traces]
    )


def read(model: aw.Model, way: str, text: str, seed: int) -> dict[str, Any]:
    """One pass over a story: its measures, top share by layer, and what the strong keys are."""
    ids = torch.tensor(model.tokenizer(text)["input_ids"])
    if way == "clear":
        decoding: aw.decoding.Decoding = aw.decoding.LeftToRight(length=1)
        trace = aw.run(model, ids.tolist()[:-1], decoding, probes=PROBES)
    else:
        canvas = torch.cat([ids[:PROMPT], torch.full((MASKS,), model.mask_id)])
        if way == "noisy":
            draws = torch.rand(len(ids), generator=torch.Generator().manual_seed(seed))
            canvas = ids.masked_fill(draws < MASKED_SHARE, model.mask_id)
        decoding = aw.decoding.LowConfidence(steps=1)
        trace = aw.run(model, canvas=canvas, decoding=decoding, probes=PROBES)
    return measure_trace(model, trace)


def measure_trace(model: aw.Model, trace: aw.Trace) -> dict[str, Any]:
    # 1. Shares [layer, head, key] of the keys that are there; an added key has its own.
    canvas = trace.canvas[0]
    present = canvas >= 0
    shares = trace["received"].sel(group="all").values[0].astype(float)[..., present]
    added = np.zeros(shares.shape[:2])
    if "sink_received" in trace:
        added = np.nan_to_num(trace["sink_received"].sel(group="all").values[0])
    top = np.maximum(shares.max(-1), added)
    key = np.where(added > shares.max(-1), -1, shares.argmax(-1))  # -1: the added key
    strong = top > STRONG
    # 2. What uniform attention would give: 1 / n, or under a causal mask its mean over rows.
    count = shares.shape[-1]
    causal = model.family.kind == "arm"
    null = float(np.mean(1 / np.arange(1, count + 1))) if causal else 1 / count
    # 3. Value norms of strong keys over the mean of the others, layer by layer.
    norms = trace["each_value_norm"].values[0][..., present].mean(1)  # [layer, key]
    ratios = [
        norms[layer, key[layer, head]] / np.delete(norms[layer], key[layer, head]).mean()
        for layer, head in zip(*np.nonzero(strong & (key >= 0)), strict=True)
    ]
    # 4. The head-mean map: how far its top key stands above the others.
    mean_map = shares.mean(1)  # [layer, key]
    deviations = (mean_map.max(-1) - mean_map.mean(-1)) / mean_map.std(-1)
    masks = canvas == (-1 if causal else model.mask_id)
    tokens = Counter(
        "added" if at < 0 else model.tokenizer.decode([int(canvas[at])]) for at in key[strong]
    )
    return {
        "values": {
            "top": top.mean(),
            "above": strong.mean(),
            "pos0": (key == 0).mean(),
            "share0": shares[..., 0].mean(),
            "heads0": (shares[..., 0] - null >= 0.1).mean(),
            "null": null,
            "mask_top": (masks[np.clip(key, 0, None)] & (key >= 0)).mean(),
            "added_top": (key < 0).mean(),
            "added_share": added.mean(),
            "head_mean": mean_map.max() * count,
            "fires": (deviations > 3).mean(),
            "value": np.mean(ratios) if ratios else np.nan,
            "act": np.abs(trace["massive_value"].values[0]).max(),
        },
        "by_layer": top.mean(1),
        "tokens": tokens,
    }


def summarise(stories: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over stories, the extremes of the first measures, and what strong keys are."""
    values = {
        name: np.array([story["values"][name] for story in stories])
        for name in stories[0]["values"]
    }
    tokens = sum((story["tokens"] for story in stories), Counter())
    total = max(sum(tokens.values()), 1)
    return {
        **{name: round(float(np.nanmean(column)), 4) for name, column in values.items()},
        **({"interval": _intervals(values)} if len(stories) > len(STORIES) else {}),
        "range": {
            name: [round(float(values[name].min()), 4), round(float(values[name].max()), 4)]
            for name in ("top", "above", "pos0", "value")
        },
        "strong_is": {text: round(n / total, 3) for text, n in tokens.most_common(6)},
        "by_layer": np.mean([story["by_layer"] for story in stories], axis=0).round(3).tolist(),
    }


def _intervals(values: dict[str, np.ndarray]) -> dict[str, list[float | None]]:
    """95 % intervals of the means, by measure; null where a story lacks the value."""
    spans = {name: with_interval(column) for name, column in values.items()}
    return {name: [span["low"], span["high"]] for name, span in spans.items()}


def with_interval(column: Sequence[float]) -> dict[str, float | None]:
    """Mean and 95 % interval over stories; null where fewer than five have the value."""
    numbers = np.asarray(column, dtype=float)
    numbers = numbers[np.isfinite(numbers)]
    if len(numbers) < 5:
        return {"value": None, "low": None, "high": None}
    span = aw.stats.cluster_bootstrap(numbers)
    return {name: round(float(getattr(span, name)), 4) for name in ("value", "low", "high")}


if __name__ == "__main__":
    main(sys.argv[1:])
