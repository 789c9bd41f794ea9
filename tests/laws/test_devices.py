"""Every public path with weights on a device and Python on the host: nothing is mixed."""

import pytest
import torch

import anchorwatch as aw
from anchorwatch.models import attention
from device_check import DEVICE, TwoPlaces, WrongDeviceError, move_network

PROMPT = "the anchor holds"


def load(name):
    model = aw.load(name)
    move_network(model.network)
    return model


def test_the_check_finds_a_mixture():
    weight = torch.ones(3)
    setattr(weight, DEVICE, True)
    with TwoPlaces():
        with pytest.raises(WrongDeviceError, match="two places"):
            weight + torch.ones(3)
        with pytest.raises(WrongDeviceError, match=r"say \.cpu"):
            (weight * 2).numpy()
        moved = torch.ones(3).to(weight.device)
        assert (weight + moved).cpu().numpy().tolist() == [2, 2, 2]
        assert (
            weight[torch.tensor([0, 1])] + torch.ones(2, device=weight.device)
        ).sum().item() == 4


DECODINGS = {
    "tiny/llada": [
        aw.decoding.LowConfidence(length=4, steps=2, guidance=0.5),
        aw.decoding.RandomOrder(length=4, steps=2, temperature=0.7),
        aw.decoding.Threshold(length=4),
    ],
    "tiny/dream": [aw.decoding.DreamOrder(length=4, steps=2, temperature=0.5, top_p=0.9)],
    "tiny/arm": [
        aw.decoding.LeftToRight(3),
        aw.decoding.LeftToRight(3, cache=False, temperature=1.0),
    ],
    "lab/toy-sink": [aw.decoding.LowConfidence(length=4, steps=2)],
    "lab/toy-gate": [aw.decoding.LowConfidence(length=4, steps=2)],
}


@pytest.mark.parametrize("kernel", ["of a CPU", "of others"])
@pytest.mark.parametrize("name", DECODINGS)
def test_runs_and_replays(monkeypatch, name, kernel):
    if kernel == "of others":  # the call of SDPA that every other device takes
        monkeypatch.setattr(attention, "_fused_on_cpu", lambda *_: False)
    model = load(name)
    for decoding in DECODINGS[name]:
        with TwoPlaces() as places:
            trace = aw.run(model, PROMPT, decoding, seed=1)
            aw.replay(model, trace, [aw.probes.received()])
            aw.run_many(model, [PROMPT, "ship"], decoding, batch=2)
        assert places.calls > 100


def test_every_probe():
    model = load("tiny/llada")
    writes = aw.decoding.LowConfidence(length=4, steps=2)
    with TwoPlaces():
        for kind in aw.probes.PROBES.values():
            if kind.__name__ != "experts":  # of mixtures
                aw.run(model, PROMPT, writes, probes=[kind()], regions={"anchor": "anchor"})


EDITS = [
    aw.edits.hide_keys([0]),
    aw.edits.hide_keys([0], form="weight"),
    aw.edits.hide_sinks(1),
    aw.edits.knock_out([(0, 0)]),
    aw.edits.sink_token(),
]


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_edits(monkeypatch, edit):
    monkeypatch.setattr(attention, "_fused_on_cpu", lambda *_: False)
    model = load("tiny/llada")
    with TwoPlaces():
        aw.run(model, PROMPT, aw.decoding.LowConfidence(length=4, steps=2), edits=[edit])


def test_effect_observation_and_likelihood():
    model = load("lab/toy-mdm")
    with TwoPlaces():
        aw.observe(model, PROMPT)
        aw.effect(
            model,
            [PROMPT, "the ship"],
            aw.decoding.LowConfidence(length=4, steps=2),
            edit=[aw.edits.hide_sinks(1)],
        )
        aw.evaluation.loglikelihood(model, PROMPT, " fast", passes=2)
        model.check()
