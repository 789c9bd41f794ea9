"""LLaDA2.2: a block of positions admits some experts, and each token chooses among those."""

import numpy as np
import pytest
import torch

import anchorwatch as aw
import tolerances
from anchorwatch.errors import ModelError, SpecError
from checkpoints import write
from references import samplers
from references.released_models import EOS, MASK, Twin, draw

SEEDS = range(4)


def shape(seed, **others):
    """Config and tensors; n_group and topk_group stay in the file, and are not followed."""
    experts = 8 + 4 * (seed % 2)
    fields = {"num_experts": experts, "num_experts_per_tok": 1 + seed % 3, "n_group": 4}
    fields |= {"topk_group": 2, "first_k_dense_replace": 0, "block_size": (4, 3)[seed % 2]}
    return draw("llada2", seed, **(fields | {"expert_capacity": 3 + seed} | others))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    made = [shape(seed) for seed in SEEDS]
    folder = tmp_path_factory.mktemp("by-blocks")
    return [
        (aw.load(write(folder / str(seed), *checkpoint)), Twin(*checkpoint))
        for seed, checkpoint in enumerate(made)
    ]


def in_blocks(length, block):
    number = torch.arange(length) // block
    return number[:, None] >= number[None, :]


def canvas_of(seed, length):
    ids = torch.randint(0, 88, (length,), generator=torch.Generator().manual_seed(seed))
    ids[::3] = MASK
    return ids


@pytest.mark.parametrize("seed", SEEDS)
def test_logits_and_experts(pairs, seed):
    model, twin = pairs[seed]
    block = model.routing_block
    for length in (4 * block, 5 * block, 2 * block + 1):
        ids = canvas_of(seed, length)
        trace = aw.observe(model, ids.tolist(), probes=[aw.probes.experts()])
        twin.experts.clear()
        theirs = twin(ids, in_blocks(length, model.block))
        assert twin.margin > 1e-5
        assert (model.logits(ids).double() - theirs).abs().max() <= tolerances.RECORDS
        for layer, chosen in twin.experts.items():
            ours = trace["expert_choice"].isel(step=0).sel(layer=layer).values
            np.testing.assert_array_equal(np.sort(ours.reshape(chosen.shape), -1), chosen)


def test_another_capacity_is_another_model(pairs, tmp_path):
    """So it is not the routing of LLaDA2.1, which a file without the field has."""
    config, tensors = shape(0)
    plain = aw.load(
        write(tmp_path / "m", {k: v for k, v in config.items() if k != "expert_capacity"}, tensors)
    )
    ids = canvas_of(0, 16)
    assert plain.routing_block is None
    assert (plain.logits(ids) - pairs[0][0].logits(ids)).abs().max() > 0.1


def test_the_laws_hold(pairs):
    for model, _ in pairs:
        assert all(law.holds for law in model.check())


@pytest.mark.parametrize("seed", SEEDS)
def test_generations_with_and_without_the_cache(pairs, seed):
    model, twin = pairs[seed]
    block = model.routing_block * (1 + seed // 2)
    prompt = [7 if t == MASK else t for t in canvas_of(seed + 9, 5).tolist()]

    def ask(canvas):
        return twin(canvas, in_blocks(len(canvas), block)).float()

    how = {"block": block, "threshold": 0.3, "stop": "never", "stop_ids": EOS}
    theirs = samplers.block_diffusion(
        ask, prompt, MASK, length=9, steps=None, order="dynamic", **how
    )
    for cache in (False, True):
        trace = aw.run(model, prompt, aw.decoding.BlockDiffusion(9, cache=cache, **how), probes=())
        assert trace["narrow"].sum() or trace.canvas.tolist() == theirs.tolist()
    many = [prompt, [*prompt, *prompt[:block]]]
    decoding = aw.decoding.BlockDiffusion(9, **how)
    for asked, trace in zip(many, aw.run_many(model, many, decoding, batch=2), strict=True):
        alone = aw.run(model, asked, decoding, probes=())
        assert alone["narrow"].sum() or trace.canvas.tolist() == alone.canvas.tolist()


def test_what_would_move_the_blocks_is_refused(pairs):
    model, _ = pairs[0]
    ids = canvas_of(0, 8)
    with pytest.raises(SpecError, match="padding would move them: ask one row at a time"):
        model.logits(torch.stack([ids, ids]), padding=torch.tensor([3, 0]))
    with pytest.raises(SpecError, match=r"say BlockDiffusion\(block=4\), or a multiple"):
        aw.run(model, [5, 6], aw.decoding.BlockDiffusion(6, block=6))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"expert_capacity": 99}, "expert_capacity=99, num_experts=8"),
        ({"expert_capacity": 1, "num_experts_per_tok": 2}, "expected a capacity between the two"),
        ({"expert_capacity": 3.5}, "expert_capacity=3.5: expected a whole number"),
        ({"block_size": None}, "config.json has no block_size: copy it"),
    ],
)
def test_a_capacity_that_cannot_be_is_refused(tmp_path, fields, says):
    with pytest.raises(ModelError, match=says):
        aw.load(write(tmp_path / "m", *shape(0, **fields)))
