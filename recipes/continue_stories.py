"""Write greedy continuations of held-out stories, to be read: are these stories?

`python recipes/continue_stories.py docs/continuations.json MODEL...` gives each model the first
words of ten held-out stories of recipes/stories.jsonl and keeps the 64 tokens that it adds, one a
step. Diffusion models write the most confident token first, in the whole text ("whole") and in
blocks of 8 from left to right ("blocks of 8"); end tokens are forbidden.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from measure_specimens import read_held_out

import anchorwatch as aw

STORIES, WORDS, TOKENS, BLOCK = 10, 12, 64, 8


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+")
    options = parser.parse_args(words)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.models:
        results[name] = continue_stories(aw.load(name))
        options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def continue_stories(model: aw.Model) -> dict[str, list[str]]:
    """Beginning | continuation of each story, by the way it was decoded."""
    beginnings = [" ".join(text.split()[:WORDS]) for text in read_held_out(STORIES)]
    ways: dict[str, aw.decoding.Decoding] = {"left to right": aw.decoding.LeftToRight(TOKENS)}
    if model.family.kind == "mdm":
        whole = aw.decoding.LowConfidence(TOKENS, TOKENS, forbid_end=True)
        blocks = aw.decoding.LowConfidence(TOKENS, TOKENS, block=BLOCK, forbid_end=True)
        ways = {"whole": whole, f"blocks of {BLOCK}": blocks}
    return {
        way: [_continue(model, text, decoding) for text in beginnings]
        for way, decoding in ways.items()
    }


def _continue(model: aw.Model, beginning: str, decoding: aw.decoding.Decoding) -> str:
    trace = aw.run(model, beginning, decoding, probes=())
    start = len(model.tokenizer(beginning)["input_ids"])
    added = model.tokenizer.decode(trace.canvas[-1][start:], skip_special_tokens=True)
    return f"{beginning} | {added.strip()}"


if __name__ == "__main__":
    main(sys.argv[1:])
