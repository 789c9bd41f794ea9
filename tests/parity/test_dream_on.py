"""DreamOn's changes of length against a plain loop of the authors' public sampler."""

import numpy as np
import pytest
import torch

import anchorwatch as aw
from anchorwatch.errors import PromptError, SpecError
from checkpoints import write
from references import samplers
from references.released_models import MASK, Twin, draw

SEEDS = range(6)
MAX = 19


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """(our model, aligned logits of its twin) of small Dreams of drawn shapes."""
    made = []
    for seed in SEEDS:
        config, tensors = draw("dream", seed)
        twin = Twin(config, tensors)

        def ask(canvas, twin=twin):
            rows = twin(canvas).float()
            return torch.cat([rows[:1], rows[:-1]])

        folder = write(tmp_path_factory.mktemp("dream-on") / "m", config, tensors)
        made.append((aw.load(folder), ask))
    return made


def canvas_of(seed):
    """Given text, a gap, given text."""
    ids = torch.randint(0, 80, (10,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [*ids[: 3 + seed % 2], *[MASK] * (3 + seed % 3), *ids[5:]]


def tokens_it_writes(ask, canvas):
    """The first tokens that the network would write, so that changes of length happen."""
    seen = samplers.dream_on(
        ask, canvas, MASK, max_length=MAX, algorithm="entropy", expand_id=95, delete_id=94
    )
    first, last = seen[0], seen[-1]
    return [new for old, new in zip(first, last, strict=False) if old == MASK and new not in first]


def frames_of(resized):
    """Every frame, each once: the first of a trace is what resizing left of the trace before."""
    frames = [frame.tolist() for trace in resized.traces for frame in trace.canvas]
    frames.append(resized.canvas.tolist())
    return [f for k, f in enumerate(frames) if k == 0 or f != frames[k - 1]]


@pytest.mark.parametrize("algorithm", ["entropy", "maskgit_plus", "topk_margin"])
@pytest.mark.parametrize("change", ["expand", "delete", "delete_right", "both"])
def test_every_frame_is_the_sampler_s(pairs, algorithm, change):
    compared = lengths = 0
    for seed, (model, ask) in zip(SEEDS, pairs, strict=True):
        canvas = canvas_of(seed)
        likely = [*tokens_it_writes(ask, canvas), 93, 92]
        expand_id = likely[0] if change in ("expand", "both") else 95
        delete_id = likely[1 if change == "both" else 0] if change != "expand" else 94
        how = {"algorithm": algorithm, "expand_id": expand_id, "delete_right": "right" in change}
        theirs = samplers.dream_on(
            ask, canvas, MASK, max_length=MAX, delete_id=delete_id, budget=4, **how
        )
        writes = aw.decoding.DreamOn(delete_ids=(delete_id,), **how)
        resized = aw.run_resizing(model, canvas, writes, max_length=MAX, expansions=4, probes=())
        lengths += len({len(frame) for frame in theirs}) > 1
        if not sum(int(trace["narrow"].sum()) for trace in resized.traces):
            assert frames_of(resized) == theirs
            compared += 1
    assert compared >= len(SEEDS) - 1 and lengths >= 2


def test_each_trace_is_of_one_length_and_is_replayed(pairs):
    (model, ask), canvas = pairs[0], canvas_of(0)
    writes = aw.decoding.DreamOn(expand_id=tokens_it_writes(ask, canvas)[0], delete_ids=(94,))
    resized = aw.run_resizing(model, canvas, writes, max_length=MAX, expansions=3)
    assert len(resized.traces) > 1
    for trace in resized.traces:
        again = aw.replay(model, trace)
        assert again.digest() == trace.digest()
        for field in trace:
            np.testing.assert_array_equal(again[field].values, trace[field].values)
    *_, last = resized.traces
    assert (resized.canvas != MASK).all() and last.num_left_masked == 0


def test_what_cannot_be_is_refused(pairs):
    model, _ = pairs[0]
    with pytest.raises(SpecError, match="expand_id=151667 is no token of this model"):
        aw.run_resizing(model, canvas_of(0), max_length=MAX)
    with pytest.raises(SpecError, match="has 11 positions and max_length=4: say max_length=22"):
        aw.run_resizing(model, canvas_of(0), max_length=4)
    with pytest.raises(SpecError, match="other decodings keep the length"):
        aw.run_resizing(model, canvas_of(0), aw.decoding.LowConfidence(), max_length=MAX)
    with pytest.raises(PromptError, match="no masked position"):
        aw.run_resizing(model, [5, 6], aw.decoding.DreamOn(expand_id=7), max_length=MAX)
    with pytest.raises(SpecError, match="are not token ids: say expand_id=151667"):
        aw.decoding.DreamOn(expand_id=-1)
