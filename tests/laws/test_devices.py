"""Every public path with weights on a device and Python on the host: nothing is mixed."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import anchorwatch as aw
from anchorwatch.generation.candidates import likely_tokens
from anchorwatch.models import attention
from anchorwatch.training.data import Example
from anchorwatch.training.objective import BatchBuilder, Scorer, token_nats
from anchorwatch.training.spec import Objective
from checkpoints import GOLDEN
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
    "tiny/dream": [
        aw.decoding.DreamOrder(length=4, steps=2, temperature=0.5, top_p=0.9),
        aw.decoding.DreamOn(length=4, expand_id=40, may_expand=False),
    ],
    "tiny/arm": [
        aw.decoding.LeftToRight(3),
        aw.decoding.LeftToRight(3, cache=False, temperature=1.0),
    ],
    "lab/toy-sink": [aw.decoding.LowConfidence(length=4, steps=2)],
    "lab/toy-gate": [aw.decoding.LowConfidence(length=4, steps=2)],
}


BLOCKS = [
    aw.decoding.BlockDiffusion(length=5, steps=2, block=4),
    aw.decoding.BlockDiffusion(length=5, block=4, order="static", temperature=0.7, top_k=5),
    aw.decoding.BlockDiffusion(length=5, block=4, order="sequential", stop="token"),
    aw.decoding.TokenEditing(length=5, block=4, threshold=0.02, editing_threshold=0.01),
    aw.decoding.EntropyOrder(length=5, steps=3),
    aw.decoding.EntropyOrder(length=5, steps=3, entropy_bound=0.5, temperature=0.7, top_p=0.9),
]


@pytest.mark.parametrize("decoding", BLOCKS, ids=str)
def test_block_decodings(decoding):
    model = load("tiny/llada")
    with TwoPlaces() as places:
        trace = aw.run(model, PROMPT, decoding, seed=1)
        aw.replay(model, trace, [aw.probes.received()])
    assert places.calls > 100


@pytest.mark.parametrize("family", ["sdar", "llada2_moe"])
def test_the_exact_cache_of_blocks_and_experts(family):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = aw.load(GOLDEN / family, device="cpu", mask_id=250)
    move_network(model.network)
    ids = list(range(5, 18))  # no multiple of the block
    probes = [aw.probes.received()] + [aw.probes.experts()] * (family == "llada2_moe")
    for decoding in (
        aw.decoding.BlockDiffusion(length=9, steps=2, block=4, cache=True),
        aw.decoding.TokenEditing(length=6, block=4, threshold=0.1, editing_threshold=0.1),
    ):
        with TwoPlaces() as places:
            aw.run(model, ids, decoding, probes=probes)
        assert places.calls > 100


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("tiny/llada", Objective(name="diffusion")),
        ("tiny/llada", Objective(name="fine_tune", masks="counted")),
        ("tiny/dream", Objective(name="diffusion", weigh="rows")),
        ("tiny/arm", Objective(name="next_token")),
    ],
    ids=str,
)
def test_a_training_step(name, objective):
    """Rows and noise come from the host, weights and moments are on the device."""
    model = load(name)
    model.network.requires_grad_(True).train()
    kind = model.family.kind
    builder = BatchBuilder(
        objective, kind, model.family.shift, model.specials.mask_id, model.specials.pad_id,
        model.vocab_size, length=8, batch=2, seed=0,
    )  # fmt: skip
    examples = [
        Example(np.arange(5, 10), np.arange(5) > 0, "text"),
        Example(np.arange(3, 6), np.arange(3) > 0, "text"),
    ]
    scorer = Scorer(model.network)
    optimizer = torch.optim.AdamW(scorer.parameters())
    before = {key: tensor.clone() for key, tensor in model.network.named_parameters()}
    with TwoPlaces() as places:
        rows = builder(examples, 0, [0, 1])
        with pytest.raises(WrongDeviceError):  # left on the host
            token_nats(scorer, rows)
        rows = rows.to(model.device)
        loss = (token_nats(scorer, rows) * rows.weights).sum() / rows.divisor
        loss.backward()
        torch.nn.utils.clip_grad_norm_(scorer.parameters(), 1.0)
        optimizer.step()
        assert loss.item() > 0
    assert places.calls > 100
    assert any(not torch.equal(before[key], p) for key, p in model.network.named_parameters())


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
    aw.edits.hide_keys([0], form="value_mean"),
    aw.edits.hide_sinks(1, form="value"),
    aw.edits.hide_random(1),
    aw.edits.hide_lowest(1),
    aw.edits.knock_out([(0, 0)]),
    aw.edits.swap_token(2, 7),
    aw.edits.force_commit(4, 7, step=0),
    aw.edits.delay_commit([4], until=1),
    aw.edits.freeze_canvas(steps=[0]),
    aw.edits.sink_token(),
    aw.edits.register(2),
    aw.edits.sink_logit(0.0),
    aw.edits.off_by_one(),
    aw.edits.kv_bias(),
    aw.edits.gate(init="plain"),
]


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_edits(monkeypatch, edit):
    monkeypatch.setattr(attention, "_fused_on_cpu", lambda *_: False)
    model = load("tiny/llada")
    with TwoPlaces():
        aw.run(model, PROMPT, aw.decoding.LowConfidence(length=4, steps=2), edits=[edit])


@pytest.mark.parametrize("word", aw.caches.CACHES)
def test_approximate_caches(word):
    model, cache = load("tiny/llada"), aw.caches.parse_cache(word)
    probes = [] if word == "evicting" else [aw.probes.received()]  # no null is known of it
    writes = [
        aw.decoding.LowConfidence(8, 8, block=4, cache=cache),
        aw.decoding.Threshold(8, block=4, threshold=0.02, cache=cache),
    ]
    with TwoPlaces() as places:
        for decoding in writes:
            trace = aw.run(model, PROMPT, decoding, probes=probes)
            aw.replay(model, trace, probes)
        aw.compare_caches(model, [PROMPT], replace(writes[0], cache=None), [cache])
    assert places.calls > 100


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream", "tiny/arm"])
def test_forks_steps_batches_and_candidates(name):
    model = load(name)
    kind = aw.decoding.LeftToRight if name == "tiny/arm" else aw.decoding.LowConfidence
    with TwoPlaces() as places:
        trace = aw.run(model, PROMPT, kind(4))
        aw.fork(model, trace, 2, seed=3)
        if name != "tiny/arm":  # which has no masked position
            likely_tokens(model, trace, 1)
        list(aw.steps(model, PROMPT, kind(4)))
        aw.run_many(model, [PROMPT, "the ship", "a"], kind(4), batch=3)
        model.logprobs(trace.canvas[0][trace.canvas[0] >= 0])
    assert places.calls > 100


@pytest.mark.parametrize("name", ["lab/toy-mdm", "lab/toy-arm"])
def test_an_evaluation(name):
    model = load(name)
    with TwoPlaces() as places:
        aw.evaluation.evaluate(model, "synthetic/one-hop", contexts=("closed", "gold+1"), limit=2)
    assert places.calls > 100


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
