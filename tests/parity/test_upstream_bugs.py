"""Bugs of the published samplers and model code, each named, each not here."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import anchorwatch as aw
import tolerances
from anchorwatch.errors import SpecError
from anchorwatch.generation.decoding import StepPlan
from anchorwatch.generation.sequence import SequenceState
from anchorwatch.models import tiny
from strategies import load

PROMPT = list(range(300, 306))


def eager_for(token_id, strength=6.0, name="tiny/llada"):
    """An embedded model that likes one token very much: its unembedding row is made large."""
    model = tiny.build(name, torch.float32)
    rows = model.network.get_output_embeddings().weight
    hidden = model.network.get_output_embeddings()
    kept = {}

    def keep(_, args):
        kept["state"] = args[0]

    handle = hidden.register_forward_pre_hook(keep)
    model.logits([*PROMPT, model.mask_id])
    handle.remove()
    with torch.no_grad():
        state = kept["state"].mean(dim=(0, 1))
        rows[token_id] = strength * state / state.norm()
    return model


def test_guidance_needs_no_attention_mask():
    """LLaDA's generate binds attention_mask_ only when a mask was given, then uses it regardless."""
    model = load("tiny/llada")
    plain = aw.run(model, PROMPT, aw.decoding.LowConfidence(8, 8))
    guided = aw.run(model, PROMPT, aw.decoding.LowConfidence(8, 8, guidance=3.0))
    assert guided.num_left_masked == 0
    assert guided.digest() != plain.digest(), "the second branch had no effect"


def test_end_tokens_wait_at_every_temperature():
    """LLaDA's confidence_eos_eot_inf changes a tensor nobody reads once the temperature is above 0,
    and at 0 it takes the confidence of one end token only."""
    eos, eot, word, mask = 0, 1, 2, 3
    logits = torch.zeros(4, 5)
    logits[0, eos], logits[1, eot] = 9.0, 8.0  # very sure of an end
    logits[2, word] = 4.0  # less sure of a word
    logits[3, word] = 3.0
    for temperature in (0.0, 0.01):
        sequence = SequenceState(
            canvas=torch.full((4,), mask),
            answer=torch.arange(4),
            mask_id=mask,
            end_ids=(eos, eot),
            eos_ids=(eos,),
            generator=torch.Generator().manual_seed(0),
        )
        plan = StepPlan(open=torch.ones(4, dtype=torch.bool), count=3)
        hasty = aw.decoding.LowConfidence(4, temperature=temperature)
        patient = aw.decoding.LowConfidence(4, temperature=temperature, defer_end=True)
        assert hasty.choose(sequence, plan, logits).positions.tolist() == [0, 1, 2]
        assert patient.choose(sequence, plan, logits).positions[:2].tolist() == [2, 3]


def test_forbidden_end_tokens_never_appear():
    model = eager_for(2)
    free = aw.run(model, PROMPT, aw.decoding.LowConfidence(8, 8))
    kept = aw.run(model, PROMPT, aw.decoding.LowConfidence(8, 8, forbid_end=True))
    assert (free.canvas[-1] == 2).any()
    assert not (kept.canvas[-1] == 2).any()


def test_every_end_token_is_forbidden_and_not_eos_alone():
    """LLaDA-Instruct ends its turns with <|eot_id|>, and eos is another token."""
    model = eager_for(2)
    specials = replace(model.specials, eos_ids=(3,), end_ids=(2, 3))
    model = replace(model, specials=specials)
    free = aw.run(model, PROMPT, aw.decoding.LowConfidence(8, 8))
    kept = aw.run(model, PROMPT, aw.decoding.LowConfidence(8, 8, forbid_end=True))
    assert (free.canvas[-1] == 2).any()
    assert not np.isin(kept.canvas[-1], (2, 3)).any()


def test_commit_counts_are_each_sequence_s_own():
    """Dream's number of transfers is a mean over the batch, so ragged rows get wrong counts."""
    model = load("tiny/dream")
    prompts = [PROMPT, [*PROMPT, *range(310, 330)]]
    decoding = aw.decoding.DreamOrder(12, 6, algorithm="entropy")
    together = aw.run_many(model, prompts, decoding, batch=2)
    for i, trace in enumerate(together):
        alone = aw.run(model, prompts[i], decoding, seed=i)
        assert (trace.masked.sum(1) == alone.masked.sum(1)).all()


def test_a_model_that_writes_the_mask_id_ends_all_the_same():
    """Fast-dLLM's while-loop never ends when the model predicts the mask token itself."""
    model = eager_for(3)
    trace = aw.run(model, PROMPT, aw.decoding.Threshold(8, block=4, threshold=0.5))
    assert trace.num_left_masked == 8
    assert trace["mask_chosen"].sum() > 0
    assert (trace.committed_at == -1).all()
    assert np.isnan(trace.logprob).all()


def test_a_chosen_mask_id_leaves_its_position_masked_and_is_counted():
    model = eager_for(3)
    for decoding in (
        aw.decoding.LowConfidence(8, 4, block=4),
        aw.decoding.RandomOrder(8, 8),
        aw.decoding.DreamOrder(8, 8, algorithm="entropy"),
    ):
        trace = aw.run(model, PROMPT, decoding)
        assert trace.num_left_masked == 8
        assert (trace.committed_at == -1).all()
        assert trace["mask_chosen"].sum() >= 8


def test_padding_never_makes_a_model_causal():
    """MMaDA and others build a causal bias as soon as an attention mask has a zero in it."""
    for name in ("tiny/llada", "tiny/dream", "tiny/bert"):
        model = load(name)
        ids = torch.tensor([[0, 0, *PROMPT], [0, 0, *PROMPT]])
        ids[1, -1] = 400
        logits = model.logits(ids, padding=2)
        assert (logits[0, 4] - logits[1, 4]).abs().max() > 0, name


def test_loading_leaves_torch_as_it_was():
    """Constructing the original LLaDA switches memory-efficient attention off for the process."""
    before = torch.backends.cuda.mem_efficient_sdp_enabled()
    dtype = torch.get_default_dtype()
    aw.load("tiny/llada")
    assert torch.backends.cuda.mem_efficient_sdp_enabled() == before
    assert torch.get_default_dtype() == dtype


def test_a_prompt_gets_its_special_tokens_once():
    model = load("tiny/llada")
    ids = model.encode([{"role": "user", "content": "the anchor"}])
    assert ids.count(4) == 1
    assert ids[0] == 4


def test_drawn_positions_are_open_however_cold_the_draw():
    """Dream's multinomial runs out of weight and then draws written positions, the prompt's too."""
    model = load("tiny/dream")
    for seed in range(12):
        for cold in (0.001, 0.02):
            decoding = aw.decoding.DreamOrder(
                16, 4, algorithm="entropy", algorithm_temperature=cold
            )
            trace = aw.run(model, PROMPT, decoding, seed=seed, probes=())
            assert (trace.canvas[:, : len(PROMPT)] == PROMPT).all()
            changed = trace.canvas[:-1] != trace.canvas[1:]
            assert (changed <= trace.masked[:-1]).all()
            assert trace.num_left_masked == trace["mask_chosen"].values[-1]


def test_leftovers_of_earlier_blocks_stay_open():
    """LLaDA's later blocks may still fill what an earlier one left masked."""
    mask = 4
    canvas = torch.tensor([mask, 1, 2, mask, mask, mask])
    sequence = SequenceState(
        canvas=canvas,
        answer=torch.arange(6),
        mask_id=mask,
        end_ids=(),
        eos_ids=(),
        generator=torch.Generator().manual_seed(0),
    )
    schedule = aw.decoding.LowConfidence(6, 6, block=3).plan_steps(sequence)
    first = [next(schedule) for _ in range(3)]
    assert first[0].open.tolist() == [True, False, False, False, False, False]
    second = next(schedule)
    assert second.open.tolist() == [True, False, False, True, True, True], "position 0 was left"
    assert second.count == 1


def test_a_row_that_stops_early_does_not_disturb_its_batch_mates():
    """A cache keeps its columns when the longest row of a batch ends first."""
    from dataclasses import replace

    model = load("tiny/arm")
    prompts = [list(range(300, 312)), [340, 350, 360, 370], list(range(400, 407))]
    for stop_at in range(3):
        free = aw.run(model, prompts[0], aw.decoding.LeftToRight(6, stop=False), probes=())
        end = int(free.canvas[-1][len(prompts[0]) + stop_at])
        ends = replace(model, specials=replace(model.specials, eos_ids=(end,)))
        for cache in (True, False):
            decoding = aw.decoding.LeftToRight(8, cache=cache)
            together = aw.run_many(ends, prompts, decoding, batch=3)
            for i, trace in enumerate(together):
                alone = aw.run(ends, prompts[i], decoding, seed=i)
                np.testing.assert_array_equal(trace.canvas, alone.canvas)
                gap = np.nanmax(np.abs(trace["received"].values - alone["received"].values))
                assert gap <= tolerances.PADDED
            assert together[0].num_steps <= stop_at + 1, "it should have stopped at its end token"


def test_ties_are_counted_as_narrow():
    """Two positions, or two tokens, that differ by less than a rounding are said to."""
    mask = 4
    sequence = SequenceState(
        canvas=torch.full((3,), mask),
        answer=torch.arange(3),
        mask_id=mask,
        end_ids=(),
        eos_ids=(),
        generator=torch.Generator().manual_seed(0),
    )
    clear = torch.tensor([[3.0, 0, 0, 0, 0], [2.0, 0, 0, 0, 0], [1.0, 0, 0, 0, 0]])
    between_positions, between_tokens = clear.clone(), clear.clone()
    between_positions[1, 0] = 3.0
    between_tokens[0, :2] = 6.0
    plan = StepPlan(open=torch.ones(3, dtype=torch.bool), count=1)
    for decoding in (
        aw.decoding.LowConfidence(3),
        aw.decoding.Threshold(3, threshold=1.0),
        aw.decoding.DreamOrder(3, algorithm="maskgit_plus"),
    ):
        assert decoding.choose(sequence, plan, clear).narrow == 0, decoding
        assert decoding.choose(sequence, plan, between_positions).narrow == 1, decoding
    everything = StepPlan(open=plan.open, count=3)
    assert aw.decoding.LowConfidence(3).choose(sequence, everything, between_tokens).narrow == 1


def test_hiding_the_first_key_is_not_padding():
    """Hidden through keys or through pairs, it is the same key that nobody looks at."""
    for name in ("tiny/llada", "tiny/dream", "tiny/bert", "tiny/arm"):
        model = load(name)
        ids = torch.tensor(PROMPT)
        keys = torch.ones(6, dtype=torch.bool)
        keys[0] = False
        gap = model.logits(ids, keys) - model.logits(ids, keys.expand(6, 6))
        assert gap[2:].abs().max() <= tolerances.LOGPROB, name


def test_pairs_never_overrule_a_sliding_window(tmp_path):
    from checkpoints import network

    network("mistral", sliding_window=4).save_pretrained(tmp_path / "m")
    model = aw.load(tmp_path / "m")
    with pytest.raises(SpecError, match="sliding-window layers"):
        model.logits([5, 6, 7], torch.ones(3, 3, dtype=torch.bool))
