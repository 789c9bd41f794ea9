"""Our policies against plain loops of the authors' samplers, seed for seed, frame for frame."""

import warnings
from functools import cache, partial

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import anchorwatch as aw
from checkpoints import GOLDEN
from references import samplers
from strategies import load, prompts, seeds

LLADA, DREAM = "tiny/llada", "tiny/dream"


def frames(model, prompt, decoding, seed):
    return torch.tensor(aw.run(model, prompt, decoding, seed=seed).canvas)


@given(
    prompts,
    seeds,
    st.sampled_from([LLADA, DREAM]),
    st.sampled_from(["low_confidence", "random"]),
    st.sampled_from([(8, 8, 8), (8, 4, 4), (12, 6, 4), (9, 5, 9), (6, 12, 3)]),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from([0.0, 2.0]),
)
def test_llada_generate(prompt, seed, name, order, shape, temperature, guidance):
    model = load(name)
    length, steps, block = shape
    kind = aw.decoding.LowConfidence if order == "low_confidence" else aw.decoding.RandomOrder
    ours = frames(
        model,
        prompt,
        kind(length, steps, block=block, temperature=temperature, guidance=guidance),
        seed,
    )
    torch.manual_seed(seed)
    theirs = samplers.llada(
        model.logits,
        prompt,
        model.mask_id,
        length=length,
        steps=steps,
        block=block,
        temperature=temperature,
        guidance=guidance,
        order=order,
    )
    assert torch.equal(ours, theirs)


@given(
    prompts,
    seeds,
    st.sampled_from([LLADA, DREAM]),
    st.sampled_from(["origin", "maskgit_plus", "topk_margin", "entropy"]),
    st.sampled_from([(8, 8), (12, 5), (6, 9)]),
    st.sampled_from([(0.0, None, None, None), (0.7, 0.9, None, None), (0.7, None, 4, 0.4)]),
)
def test_dream_diffusion_generate(prompt, seed, name, algorithm, shape, options):
    model = load(name)
    length, steps = shape
    temperature, top_p, top_k, algorithm_temperature = options
    settings = {
        "algorithm": algorithm,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "algorithm_temperature": algorithm_temperature,
    }
    ours = frames(model, prompt, aw.decoding.DreamOrder(length, steps, **settings), seed)
    torch.manual_seed(seed)
    theirs = samplers.dream(
        model.logits, prompt, model.mask_id, length=length, steps=steps, **settings
    )
    assert torch.equal(ours, theirs)


@given(prompts, seeds, st.sampled_from([0.02, 0.1, 0.9]), st.sampled_from([0.0, 0.8]))
def test_fast_dllm_threshold(prompt, seed, threshold, temperature):
    model = load(LLADA)
    decoding = aw.decoding.Threshold(12, block=4, threshold=threshold, temperature=temperature)
    ours = aw.run(model, prompt, decoding, seed=seed)
    # upstream would go round for ever: see test_upstream_bugs
    assume(not ours["mask_chosen"].any())
    torch.manual_seed(seed)
    theirs = samplers.fast_dllm(
        model.logits,
        prompt,
        model.mask_id,
        length=12,
        block=4,
        threshold=threshold,
        temperature=temperature,
    )
    assert torch.equal(torch.tensor(ours.canvas), theirs)


@pytest.mark.parametrize("cache", [True, False])
def test_greedy_left_to_right_equals_generate(cache):
    model = load("tiny/arm")
    for length in (1, 7, 20):
        ids = list(range(300, 300 + length))
        ours = aw.run(model, ids, aw.decoding.LeftToRight(24, cache=cache))
        theirs = model.network.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=24)
        assert ours.canvas[-1][: theirs.shape[1]].tolist() == theirs[0].tolist()
        assert (ours.canvas[-1][theirs.shape[1] :] == -1).all()


@cache
def in_blocks():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return aw.load(GOLDEN / "sdar", mask_id=250)


short_prompts = st.lists(st.integers(10, 240), min_size=1, max_size=12)
stops = st.sampled_from(["never", "block", "token"])


def is_plain(trace):
    """Whether no decision hangs on a tie: the twin computes other rows together, and rounds so."""
    return trace["narrow"].sum() == 0 and trace["mask_chosen"].sum() == 0


@given(
    short_prompts,
    seeds,
    st.sampled_from(["dynamic", "static", "sequential"]),
    st.sampled_from([(8, None, 4), (9, 3, 4), (5, 8, 8), (3, 6, 8), (12, 2, 5), (7, 9, 3)]),
    st.sampled_from([0.3, 0.7, 1.0]),
    stops,
    st.sampled_from([(0.0, None, None), (1.0, None, None), (0.8, 6, None), (1.0, 9, 0.8)]),
    st.booleans(),
)
def test_block_diffusion(prompt, seed, order, shape, threshold, stop, sampling, cache):
    model, (length, steps, block) = in_blocks(), shape
    temperature, top_k, top_p = sampling
    options = {"order": order, "threshold": threshold, "stop": stop, "stop_ids": (85, 48, 166)}
    options |= {"temperature": temperature, "top_k": top_k, "top_p": top_p, "block": block}
    ours = aw.run(
        model,
        prompt,
        aw.decoding.BlockDiffusion(length, steps, cache=cache, **options),
        probes=(),
        seed=seed,
    )
    assume(is_plain(ours))
    torch.manual_seed(seed)
    ask = partial(model.logits, block=block)
    theirs = samplers.block_diffusion(ask, prompt, 250, length=length, steps=steps, **options)
    assert torch.equal(torch.tensor(ours.canvas), theirs)


@given(
    short_prompts,
    st.sampled_from([(8, 4), (9, 4), (5, 8), (12, 5)]),
    st.sampled_from([0.3, 0.7]),
    st.sampled_from([0.3, 0.6, 1.0]),
    st.integers(0, 4),
    st.integers(1, 3),
    st.sampled_from(["never", "block"]),
    st.booleans(),
)
def test_token_editing(prompt, shape, threshold, editing, post_steps, least, stop, cache):
    model, (length, block) = in_blocks(), shape
    options = {"block": block, "threshold": threshold, "editing_threshold": editing}
    options |= {"max_post_steps": post_steps, "least": least, "stop": stop, "stop_ids": (85, 48)}
    decoding = aw.decoding.TokenEditing(length, cache=cache, **options)
    ours = aw.run(model, prompt, decoding, probes=())
    assume(is_plain(ours))
    ask = partial(model.logits, block=block)
    theirs = samplers.token_editing(ask, prompt, 250, length=length, **options)
    assert torch.equal(torch.tensor(ours.canvas), theirs)


@given(
    prompts,
    st.integers(1, 9),
    st.integers(1, 12),
    st.sampled_from([None, 0.0, 1.0, 6.0]),
    st.lists(st.integers(10, 570), max_size=3),
)
def test_rnd1_diffusion_sample(prompt, length, steps, bound, suffix):
    model = load(DREAM)  # shifted, as RND1
    canvas = prompt + [model.mask_id] * length + suffix
    decoding = aw.decoding.EntropyOrder(length, steps, entropy_bound=bound)
    ours = aw.run(model, canvas=canvas, decoding=decoding, probes=())
    assume(is_plain(ours))
    theirs = samplers.rnd1(model.logits, canvas, model.mask_id, steps=steps, entropy_bound=bound)
    assert torch.equal(torch.tensor(ours.canvas), theirs)
