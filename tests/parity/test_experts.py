"""The experts probe against the routers' own choices, recorded and recomputed."""

import numpy as np
import pytest
from safetensors.torch import load_file

import anchorwatch as aw
from anchorwatch.errors import SpecError
from anchorwatch.trace.trace import MASKED, PROMPT, SPECIAL
from checkpoints import GOLDEN
from strategies import load

pytestmark = pytest.mark.filterwarnings("ignore:.*asks for remote code")


@pytest.fixture(scope="module", params=["llada2_moe", "llada_moe", "rnd1"])
def record(request):
    folder = GOLDEN / request.param
    with pytest.warns(aw.errors.AnchorwatchWarning, match="remote code"):
        model = aw.load(folder, mask_id=250)
    return model, load_file(folder / "golden.safetensors")


def test_the_choices_of_the_first_step_are_the_recorded_ones(record):
    """The recorded input is a canvas; block-causal models read it as far as the open block."""
    model, golden = record
    ids = golden["input_ids"][0]
    probe = [aw.probes.experts()]
    trace = aw.run(model, canvas=ids.tolist(), decoding=aw.decoding.LowConfidence(), probes=probe)
    for layer in range(model.num_layers):
        ours = trace["expert_choice"].values[0, layer]
        if f"experts.{layer}" not in golden:
            assert (ours == -1).all() and (trace["expert_count"].values[:, layer] == -1).all()
            continue
        theirs = golden[f"experts.{layer}"][0].numpy()
        np.testing.assert_array_equal(np.sort(ours), np.sort(theirs))


def test_counts_are_the_choices_of_each_group_added_up(record):
    model, _ = record
    decoding = aw.decoding.LowConfidence(12, 4)
    if model.block is not None:
        decoding = aw.decoding.BlockDiffusion(12, 4, block=8, cache=True)
    groups = ("all", "masked", "prompt")
    prompt = list(range(20, 33))
    probe = aw.probes.experts(groups=groups, layers=[1])
    trace = aw.run(model, prompt, decoding, probes=[probe])
    choice, count = trace["expert_choice"].values, trace["expert_count"].values
    assert count.shape[2:] == (3, model.num_experts)
    for step in range(trace.num_steps):
        role = trace.role[step]
        members = (role >= 0, role == MASKED, np.isin(role, (PROMPT, SPECIAL)))
        for group, member in enumerate(members):
            rows = choice[step, 1, member]
            expected = np.bincount(rows[rows >= 0], minlength=model.num_experts)
            np.testing.assert_array_equal(count[step, 1, group], expected)
    assert (choice[:, 0] == -1).all()  # layers that were not looked at


def test_experts_of_sinks_are_counted_from_the_choices(record, tmp_path):
    """What a trace keeps is enough: the experts of the positions that a rule calls sinks."""
    model, _ = record
    probes = [aw.probes.experts(), aw.probes.received()]
    decoding = aw.decoding.LowConfidence(8, 4)
    trace = aw.run(model, list(range(20, 33)), decoding, probes=probes)
    trace = aw.read(trace.write(tmp_path / "t.trace"))
    received = trace["received"].sel(group="all").mean("head").values[0, 1]
    sink = int(np.nanargmax(received))
    chosen = trace["expert_choice"].values[0, 1, sink]
    assert len(set(chosen)) == model.num_experts_per_token
    assert (trace["expert_count"].sel(query_group="all").values[0, 1, chosen] > 0).all()


def test_watching_experts_changes_nothing(record):
    model, _ = record
    decoding = aw.decoding.LowConfidence(8, 4)
    plain = aw.run(model, [20, 21, 22], decoding, probes=())
    watched = aw.run(model, [20, 21, 22], decoding, probes=[aw.probes.experts()])
    assert plain.digest() == watched.digest()
    np.testing.assert_array_equal(plain.logprob, watched.logprob)
    again = aw.replay(model, plain, probes=[aw.probes.experts()])
    np.testing.assert_array_equal(again["expert_choice"], watched["expert_choice"])


def test_a_dense_model_has_no_experts():
    with pytest.raises(SpecError, match="needs a mixture of experts: this model has none"):
        aw.run(
            load("tiny/llada"), [20, 21], aw.decoding.LowConfidence(2), probes=[aw.probes.experts()]
        )
