"""Hypothesis strategies that speak the glossary: models, prompts, decodings."""

from functools import cache

from hypothesis import strategies as st

import anchorwatch as aw
from anchorwatch import decoding


@cache
def load(name: str) -> aw.Model:
    """An embedded model, built once for each worker."""
    return aw.load(name, device="cpu")


denoisers = st.sampled_from(["tiny/llada", "tiny/dream", "tiny/bert"]).map(load)
seeds = st.integers(0, 2**31)
# 10 and up: ordinary tokens, neither special nor mask
prompts = st.lists(st.integers(10, 570), min_size=1, max_size=12)


@st.composite
def evenly(draw, kind):
    blocks = draw(st.integers(1, 3))
    block = draw(st.integers(1, 5))
    options = {
        "steps": blocks * draw(st.integers(1, 6)),
        "block": block,
        "temperature": draw(st.sampled_from([0.0, 0.7])),
        "guidance": draw(st.sampled_from([0.0, 0.0, 1.5])),
        "forbid_end": draw(st.booleans()),
    }
    if kind is decoding.LowConfidence:
        options["defer_end"] = draw(st.booleans())
    return kind(length=blocks * block, **options)


@st.composite
def dream_orders(draw):
    return decoding.DreamOrder(
        length=draw(st.integers(1, 10)),
        steps=draw(st.integers(1, 12)),
        algorithm=draw(st.sampled_from(["origin", "maskgit_plus", "topk_margin", "entropy"])),
        temperature=draw(st.sampled_from([0.0, 0.6])),
        top_p=draw(st.sampled_from([None, 0.9])),
        top_k=draw(st.sampled_from([None, 5])),
        algorithm_temperature=draw(st.sampled_from([None, 0.0, 0.5])),
    )


@st.composite
def thresholds(draw):
    blocks, block = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    return decoding.Threshold(
        length=blocks * block,
        block=block,
        threshold=draw(st.sampled_from([0.02, 0.2, 0.9])),
        temperature=draw(st.sampled_from([0.0, 0.7])),
    )


even = st.one_of(evenly(decoding.LowConfidence), evenly(decoding.RandomOrder))
denoisings = st.one_of(even, dream_orders(), thresholds())
left_to_right = st.builds(
    decoding.LeftToRight,
    length=st.integers(1, 10),
    temperature=st.sampled_from([0.0, 0.8]),
    top_p=st.sampled_from([None, 0.9]),
    cache=st.booleans(),
)
