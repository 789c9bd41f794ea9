"""Running text: what trajectory claims watch being written, and how much of it are end tokens."""

import numpy as np
import pytest
import running_text

from anchorwatch.generation.decoding import LeftToRight, LowConfidence
from anchorwatch.models.load import load
from anchorwatch.studies import preconditions, prompts
from anchorwatch.studies.budget import BUDGETS, Budget
from anchorwatch.studies.collect import collect
from anchorwatch.studies.evidence import (
    PLAIN_PROBES,
    Available,
    Effect,
    Evidence,
    EvidenceStore,
    ModelIdentity,
    Runs,
    TraceSet,
)
from anchorwatch.studies.measure import ARM_TEXT, MDM_TEXT, end_share
from anchorwatch.trace.trace import Trace
from synthetic_traces import planted

SMALL = Budget("small", 2, length=4, steps=4, items=2, rows=2, text_length=8, text_block=4)


def test_the_shipped_openings_are_what_the_recipe_makes():
    assert list(prompts.running_texts()) == running_text.make_openings()
    assert len(set(prompts.running_texts())) == running_text.COUNT


def test_every_opening_fits_the_lab_models_with_what_the_largest_budget_writes():
    model = load("lab/toy-mdm")
    longest = max(len(model.encode(text)) for text in prompts.running_texts())
    assert longest + BUDGETS["full"].text_length <= model.num_positions


@pytest.mark.parametrize("name", BUDGETS)
def test_text_is_written_in_four_blocks_a_token_a_step(name):
    how = MDM_TEXT.how(BUDGETS[name], "mdm")
    assert isinstance(how, LowConfidence)
    assert (how.num_blocks, how.num_passes, how.forbid_end) == (4, how.length, True)
    arm = ARM_TEXT.how(BUDGETS[name], "arm")
    assert arm == LeftToRight(how.length, cache=False, stop=False)
    assert MDM_TEXT.measures == PLAIN_PROBES


def test_a_set_that_ends_gives_as_many_units_as_it_has():
    large = Budget("large", 1000, length=4, steps=4, items=2, rows=2)
    assert MDM_TEXT.units(large) == running_text.COUNT
    assert Effect("mdm", (), prompts="text").units(large) == running_text.COUNT
    assert Runs("mdm").units(large) == 1000


def _traces(ends):
    """Runs of four written positions, so many of which are end tokens."""
    traces = []
    for count in ends:
        trace = planted(np.full((4, 1, 1, 6, 6), 1 / 6), prompt=2)
        manifest = trace.manifest
        model = manifest["model"] | {"end_ids": trace.own[2 : 2 + count].tolist()}
        traces.append(Trace(trace.dataset(), manifest | {"model": model}))
    return Evidence.of({MDM_TEXT: TraceSet.from_traces(traces)})


def test_the_share_of_end_tokens_is_counted_and_most_of_them_is_no_text():
    evidence = _traces([0, 1, 2])
    assert end_share(evidence, MDM_TEXT).tolist() == [0, 0.25, 0.5]
    text = preconditions.writes_text(MDM_TEXT).check(evidence)
    assert text.value == 0.75 and text.holds
    ends = preconditions.writes_text(MDM_TEXT).check(_traces([3]))
    assert ends.value == 0.25 and ends.holds is False


@pytest.mark.parametrize("source", ["lab/toy-mdm", "tiny/llada"])
def test_a_masked_model_writes_no_end_token_into_running_text(tmp_path, source):
    model = load(source)
    identity = ModelIdentity(source, "mdm", "abc", (), 1, 1, 256, "", "", "cpu")
    store = EvidenceStore(tmp_path, SMALL, Available({"mdm": identity}))
    made = []
    collect(store, MDM_TEXT, "mdm", model, made.append)
    runs = store.load(MDM_TEXT)
    assert len(runs.traces) == len(made) == runs.count == 2
    for trace in runs.traces:
        written = trace.own[trace.answer]
        assert not np.isin(written, model.specials.eos_ids).any()
        first, last = trace.committed_at[trace.answer].reshape(2, 4)
        assert first.max() < last.min()  # block by block
