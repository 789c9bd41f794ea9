"""A run, a replay, a fork, cached answers and evidence are of one model: its weights, its settings
and its tokenizer."""

import json

import numpy as np
import pytest

import anchorwatch as aw
import checkpoints
from anchorwatch.errors import AnchorwatchWarning, TraceError
from anchorwatch.evaluation import evaluate, read_results
from anchorwatch.generation import loop
from anchorwatch.studies.run_study import _identify_model
from anchorwatch.trace.atomic_io import read_sealed, seal
from anchorwatch.trace.model_identity import DECIDING, difference
from anchorwatch.trace.trace import Trace

D = aw.decoding
SHORT = D.LowConfidence(10, 10)
REMEDY = "give the model as it was then: the same weights, config.json and tokenizer"


def edit_json(path, change):
    held = json.loads(path.read_text())
    change(held)
    path.write_text(json.dumps(held))


def other_epsilon(folder):
    edit_json(folder / "config.json", lambda config: config.update(rms_norm_eps=0.1))


def other_tokenizer(folder):
    def swap(said):
        vocab = said["model"]["vocab"]
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]

    edit_json(folder / "tokenizer.json", swap)


CHANGES = {
    "settings": (other_epsilon, "it has rms_norm_eps 1e-06, .* has 0.1"),
    "tokenizer": (other_tokenizer, "it has tokenizer [0-9a-f]{12}, .* has [0-9a-f]{12}"),
}


@pytest.fixture
def folder(tmp_path):
    folder = checkpoints.write_llada(tmp_path / "m")[0]
    checkpoints.write_tokenizer(folder)
    return folder


@pytest.fixture(params=CHANGES)
def changed(folder, request):
    """The model as it is, what changes its folder, and what is said of it then."""
    change, says = CHANGES[request.param]
    return folder, aw.load(folder), change, f"{says}.*; {REMEDY}"


def killed(model, path, monkeypatch):
    note = loop.RunState.append_step

    def die(job, *given):
        if len(job.steps) == 9:
            raise KeyboardInterrupt
        return note(job, *given)

    with monkeypatch.context() as patch:
        patch.setattr(loop.RunState, "append_step", die)
        with pytest.raises(KeyboardInterrupt):
            aw.run(model, "ab", SHORT, out=path)


def test_a_run_goes_on_only_with_its_model(changed, tmp_path, monkeypatch):
    folder, model, change, says = changed
    killed(model, tmp_path / "a.trace", monkeypatch)
    change(folder)
    with pytest.raises(TraceError, match=f"a.trace was begun with .*{says}"):
        aw.run(aw.load(folder), resume=tmp_path / "a.trace")
    held = aw.run(model, resume=tmp_path / "a.trace")
    assert held.digest() == aw.run(model, "ab", SHORT).digest()


def test_replays_and_forks_are_of_the_same_model(changed):
    folder, model, change, says = changed
    trace = aw.run(model, "ab", SHORT, probes=())
    change(folder)
    other = aw.load(folder)
    with pytest.raises(TraceError, match=f"is not the model that made this trace.*{says}"):
        aw.replay(other, trace)
    with pytest.raises(TraceError, match=f"is not the model that made this trace.*{says}"):
        aw.fork(other, trace, 3)
    assert aw.replay(model, trace).digest() == trace.digest()


def test_a_replay_in_another_dtype_says_so():
    trace = aw.run(aw.load("tiny/llada"), "the", SHORT, probes=())
    says = "tiny/llada as it is now is not .*; it has dtype float32, .*; load it with dtype float32"
    with pytest.raises(TraceError, match=says):
        aw.replay(aw.load("tiny/llada", dtype="bfloat16"), trace)


def test_cached_answers_and_evidence_are_of_the_same_model(changed, tmp_path):
    folder, model, change, _ = changed
    options = {"contexts": "closed", "decoding": D.LowConfidence(2), "limit": 1}
    first = evaluate(model, "synthetic/one-hop", out=tmp_path / "out", **options)
    before = _identify_model("mdm", model)
    change(folder)
    other = aw.load(folder)
    second = evaluate(other, "synthetic/one-hop", out=tmp_path / "out", **options)
    assert not set(first.manifests) & set(second.manifests)
    assert read_results(tmp_path / "out").rows.model.nunique() == 2
    assert _identify_model("mdm", other).identity != before.identity


def test_evidence_is_told_apart_by_what_no_digest_of_tensors_covers(folder):
    """generation_config.json may name the mask; nothing else in the folder changes then."""
    edit_json(folder / "config.json", lambda config: config.pop("mask_token_id"))
    found = []
    for mask in (90, 91):
        (folder / "generation_config.json").write_text(json.dumps({"mask_token_id": mask}))
        found.append(_identify_model("mdm", aw.load(folder)))
    assert (found[0].weights, found[0].settings) == (found[1].weights, found[1].settings)
    assert found[0].identity != found[1].identity


def test_what_an_older_manifest_does_not_say_is_not_compared(folder, tmp_path, monkeypatch):
    model = aw.load(folder)
    trace = aw.run(model, "ab", SHORT, probes=())
    older = json.loads(json.dumps(trace.manifest))
    for name in ("settings", "tokenizer", "config"):
        del older["model"][name]
    other_epsilon(folder)
    old = Trace(trace.dataset(), older)
    says = "the trace says nothing of the model's settings and tokenizer"
    with pytest.warns(AnchorwatchWarning, match=says):
        again = aw.replay(model, old)
    assert again.digest() == trace.digest()
    killed(model, tmp_path / "a.trace", monkeypatch)
    path = tmp_path / "a.trace.partial" / "run.json"
    record = read_sealed(path)
    for name in ("settings", "tokenizer", "config"):
        del record["head"]["model"][name]
    path.write_bytes(seal(record))
    with pytest.warns(AnchorwatchWarning, match=r"a\.trace says nothing of the model's settings"):
        aw.run(model, resume=tmp_path / "a.trace")


def test_a_version_that_adds_a_setting_changes_nothing(folder):
    said = aw.load(folder).describe()
    newer = said | {"settings": "0" * 64, "config": said["config"] | {"a_new_field": 3}}
    assert difference(newer, said) is None
    assert difference(said, newer) is None
    newer["config"]["rms_norm_eps"] = 3.0
    assert "it has rms_norm_eps 3.0" in difference(said, newer)


@pytest.mark.parametrize("name", DECIDING)
def test_everything_that_decides_is_compared(folder, name):
    said = aw.load(folder).describe()
    said.pop("config")
    assert difference(said, said) is None
    assert f"it has {name} " in difference(said, said | {name: "other"})


def test_a_tokenizer_is_the_same_after_it_was_used(folder):
    """A call that cuts or pads leaves its limits in the tokenizer."""
    model = aw.load(folder)
    before = model.describe()["tokenizer"]
    model.tokenizer("abc", truncation=True, max_length=2)
    assert model.describe()["tokenizer"] == before
    assert np.array_equal(model.encode("ab"), aw.load(folder).encode("ab"))
