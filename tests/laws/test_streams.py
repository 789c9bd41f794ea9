"""Runs written while they run: the same trace, and the same again after a kill at any step."""

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.generation import loop
from anchorwatch.trace.atomic_io import find_damage
from strategies import load

D = aw.decoding
PROMPT = "the anchor drifts"
RUNS = {
    "llada": ("tiny/llada", D.LowConfidence(20, 20, block=4)),
    "drawn": ("tiny/dream", D.DreamOrder(18, 18, temperature=0.8)),
    "guided": ("tiny/llada", D.LowConfidence(10, 10, guidance=1.5)),
    "cached": ("tiny/arm", D.LeftToRight(19, temperature=0.7)),
    "short": ("tiny/llada", D.LowConfidence(3)),
    "whole blocks": ("tiny/llada", D.LowConfidence(16)),
}


def same(held, live):
    assert held.manifest == live.manifest
    assert set(held.fields) == set(live.fields)
    for name in live.fields:
        stored = live[name].encoding.get("dtype", live[name].dtype)
        np.testing.assert_array_equal(
            held[name].values, live[name].values.astype(stored), err_msg=name
        )


@pytest.mark.parametrize("case", RUNS)
def test_a_streamed_run_is_the_run(tmp_path, case):
    name, decoding = RUNS[case]
    live = aw.run(load(name), PROMPT, decoding, seed=3)
    held = aw.run(load(name), PROMPT, decoding, seed=3, out=tmp_path / "a.trace")
    same(held, live)
    assert [path.name for path in tmp_path.iterdir()] == ["a.trace"]


KILLS = [
    (case, at) for case, (_, one) in RUNS.items() for at in (0, 7, 8, 13) if at < one.num_passes
]


@pytest.mark.parametrize(("case", "killed_at"), KILLS)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch, case, killed_at):
    name, decoding = RUNS[case]
    model = load(name)
    live = aw.run(model, PROMPT, decoding, seed=3)
    assert killed_at < live.num_steps
    note = loop.RunState.append_step

    def die(job, *given):
        if len(job.steps) == killed_at:
            raise KeyboardInterrupt
        return note(job, *given)

    monkeypatch.setattr(loop.RunState, "append_step", die)
    with pytest.raises(KeyboardInterrupt):
        aw.run(model, PROMPT, decoding, seed=3, out=tmp_path / "a.trace")
    monkeypatch.undo()
    with pytest.raises(TraceError, match="unfinished run"):
        aw.read(tmp_path / "a.trace")
    assert "is an unfinished run: continue it with" in find_damage(tmp_path / "a.trace")[0]
    same(aw.run(model, resume=tmp_path / "a.trace"), live)
    assert [path.name for path in tmp_path.iterdir()] == ["a.trace"]


def test_a_resume_does_not_repeat_what_is_done(tmp_path, monkeypatch):
    model = load("tiny/llada")
    note, passes = loop.RunState.append_step, []

    def die(job, *given):
        if len(job.steps) == 17:
            raise KeyboardInterrupt
        return note(job, *given)

    monkeypatch.setattr(loop.RunState, "append_step", die)
    with pytest.raises(KeyboardInterrupt):
        aw.run(model, PROMPT, D.LowConfidence(20), out=tmp_path / "a.trace")
    monkeypatch.undo()
    forward = model.network.forward
    monkeypatch.setattr(
        model.network, "forward", lambda *a, **k: passes.append(1) or forward(*a, **k)
    )
    aw.run(model, resume=tmp_path / "a.trace")
    assert len(passes) == 4, "16 steps were on disk: 16 to 19 were left"


def test_resuming_takes_the_model_and_nothing_else(tmp_path):
    model = load("tiny/llada")
    with pytest.raises(SpecError, match=r"run\(model, resume=path\)"):
        aw.run(model, PROMPT, resume=tmp_path / "a.trace")
    with pytest.raises(TraceError, match="there is no unfinished run"):
        aw.run(model, resume=tmp_path / "a.trace")
    aw.run(model, PROMPT, D.LowConfidence(2), out=tmp_path / "a.trace")
    with pytest.raises(TraceError, match="exists already"):
        aw.run(model, PROMPT, D.LowConfidence(2), out=tmp_path / "a.trace")


def test_resuming_refuses_another_model(tmp_path, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.RunState, "append_step", die)
    with pytest.raises(KeyboardInterrupt):
        aw.run(load("tiny/llada"), PROMPT, D.LowConfidence(4), out=tmp_path / "a.trace")
    monkeypatch.undo()
    with pytest.raises(TraceError, match="was begun with tiny/llada"):
        aw.run(load("tiny/dream"), resume=tmp_path / "a.trace")
