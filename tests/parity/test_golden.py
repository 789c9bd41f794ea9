"""The original LLaDA and Dream code, recorded: our logits and every frame of our runs equal theirs."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import anchorwatch as aw
import tolerances
from checkpoints import GOLDEN


@pytest.fixture(scope="module", params=["llada", "dream"])
def record(request):
    folder = GOLDEN / request.param
    return aw.load(folder), load_file(folder / "golden.safetensors"), folder


def raw_rows(model, aligned):
    """Rows as the original code returns them: Dream's before the shift."""
    return aligned[:, 1:] if model.family.shift else aligned


def expected_rows(model, logits):
    return logits[:, :-1] if model.family.shift else logits


def test_logits_equal_the_original_code(record):
    model, golden, _ = record
    ours = raw_rows(model, model.logits(golden["input_ids"]))
    gap = (ours - expected_rows(model, golden["logits"])).abs().max()
    assert gap <= tolerances.GOLDEN_LOGITS


def test_logits_of_padded_rows_equal_the_original_code(record):
    model, golden, _ = record
    keys = golden["padded.attention_mask"].bool()
    theirs = expected_rows(model, golden["padded.logits"])
    real = keys[:, :-1] if model.family.shift else keys
    padding = (~keys).sum(-1)
    for ours in (
        model.logits(golden["padded.input_ids"], padding=padding),
        model.logits(golden["padded.input_ids"], keys),  # rotary: only distances matter
    ):
        assert (raw_rows(model, ours) - theirs)[real].abs().max() <= tolerances.GOLDEN_LOGITS


def test_the_first_position_of_a_shifted_model_keeps_its_own_row(record):
    model, golden, _ = record
    if model.family.shift:
        gap = (model.logits(golden["input_ids"])[:, 0] - golden["logits"][:, 0]).abs().max()
        assert gap <= tolerances.GOLDEN_LOGITS
    else:
        assert model.family.name == "llada"


def test_every_recorded_generation_is_reproduced_frame_by_frame(record):
    model, _, folder = record
    for run in json.loads((folder / "generation.json").read_text()):
        args = run["args"]
        if model.family.name == "llada":
            decoding = aw.decoding.LowConfidence(
                args["gen_length"], args["steps"], block=args["block_length"]
            )
        else:
            decoding = aw.decoding.DreamOrder(
                args["max_new_tokens"], args["steps"], algorithm=args["alg"]
            )
        trace = aw.run(model, run["prompt"], decoding)
        frames = trace.canvas[:-1] if model.family.name == "llada" else trace.canvas[1:]
        np.testing.assert_array_equal(frames, run["states"], err_msg=str(args))
        np.testing.assert_array_equal(trace.canvas[-1], run["output"])


def test_no_recorded_generation_hangs_on_a_tie(record):
    """Another BLAS may round otherwise: a record whose margins are narrow would not be a record."""
    model, _, folder = record
    run = json.loads((folder / "generation.json").read_text())[0]
    kind = aw.decoding.LowConfidence if model.family.name == "llada" else aw.decoding.DreamOrder
    trace = aw.run(model, run["prompt"], kind(16, 16))
    assert trace["narrow"].sum() == 0


def test_logprobs_are_normalised_logits(record):
    model, golden, _ = record
    ids = golden["input_ids"][0]
    expected = torch.log_softmax(model.logits(ids), -1)
    assert torch.equal(model.logprobs(ids), expected)
    assert torch.equal(model.logprobs(golden["input_ids"])[0], expected)


def test_fast_dllm_without_its_cache_is_reproduced_frame_by_frame():
    """NVlabs/Fast-dLLM 24cc59e7 on the weights of the llada record, with and without a threshold."""
    model = aw.load(GOLDEN / "llada")
    for run in json.loads((GOLDEN / "llada" / "fast_dllm.json").read_text()):
        args = run["args"]
        decoding = aw.decoding.LowConfidence(
            args["gen_length"], args["steps"], block=args["block_length"]
        )
        if args["threshold"] is not None:
            decoding = aw.decoding.Threshold(
                args["gen_length"], block=args["block_length"], threshold=args["threshold"]
            )
        trace = aw.run(model, run["prompt"], decoding, probes=())
        expected = [*run["states"], run["output"]]
        np.testing.assert_array_equal(trace.canvas, expected, err_msg=str(args))
