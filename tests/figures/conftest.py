"""Traces of the embedded models, made once."""

import json

import pytest

import anchorwatch as aw
from anchorwatch.trace.trace import Trace


@pytest.fixture(scope="session")
def model():
    return aw.load("tiny/llada")


@pytest.fixture(scope="session")
def trace(model):
    return aw.run(model, "the anchor holds", aw.decoding.LowConfidence(length=8, steps=8))


@pytest.fixture(scope="session")
def causal():
    return aw.run(aw.load("tiny/arm"), "the anchor holds", aw.decoding.LeftToRight(length=6))


@pytest.fixture(scope="session")
def patterned(model, trace):
    probes = [aw.probes.pattern(layers=[0], heads=[1], steps=[3, 4])]
    return aw.replay(model, trace, probes=probes)


@pytest.fixture
def spelled(trace):
    """The same trace whose tokens have other texts, in the order of their ids."""

    def respell(texts):
        manifest = json.loads(json.dumps(trace.manifest))
        for token_id, text in zip(list(manifest["tokens"]), texts, strict=False):
            manifest["tokens"][token_id] = text
        return Trace(trace.dataset(), manifest)

    return respell
