"""Evaluations, effects and studies through workers: the same numbers as without."""

import functools
import threading

import pytest

import anchorwatch as aw
from anchorwatch.errors import SpecError
from anchorwatch.evaluation import effect as effects
from anchorwatch.evaluation import grid
from anchorwatch.generation import loop
from anchorwatch.models.engines.choose import EngineOptions
from anchorwatch.trace.locks import Lock

HERE = EngineOptions("local", workers=0)
TWO = EngineOptions("local", workers=2)
PROMPTS = ["the anchor", "the ship", "a rope"]


def test_an_effect_kept_run_by_run_is_the_same(tmp_path, monkeypatch):
    model, how, edit = aw.load("tiny/llada"), aw.decoding.LowConfidence(3), aw.edits.hide_sinks(1)
    plain = aw.effect(model, PROMPTS, how, edit)
    kept = aw.effect(model, PROMPTS, how, edit, keep=tmp_path, engine=HERE)
    assert plain.table.equals(kept.table)
    assert plain.layers.equals(kept.layers)
    assert len(list(tmp_path.glob("*.json"))) == 3
    monkeypatch.setattr(effects, "_compare", None)  # nothing is computed again
    again = aw.effect(model, PROMPTS, how, edit, keep=tmp_path)
    assert plain.table.equals(again.table)
    with pytest.raises(SpecError, match="leave traces out"):
        aw.effect(model, PROMPTS, how, edit, keep=tmp_path, traces=True)


def test_a_comparison_that_another_process_makes_is_read(tmp_path, monkeypatch):
    """Two effects on one folder: who comes second waits for the first and computes nothing."""
    model, how, edit = aw.load("tiny/llada"), aw.decoding.LowConfidence(3), aw.edits.hide_sinks(1)
    plain = aw.effect(model, PROMPTS[:1], how, edit, keep=tmp_path)
    (path,) = tmp_path.glob("*.json")
    content = path.read_bytes()
    path.unlink()
    lock = Lock.try_take(tmp_path, f"{path.stem}.lock")
    monkeypatch.setattr(effects, "_compare", None)
    tables = []
    call = functools.partial(aw.effect, model, PROMPTS[:1], how, edit, keep=tmp_path)
    second = threading.Thread(target=lambda: tables.append(call().table))
    second.start()
    second.join(0.5)
    assert second.is_alive()
    path.write_bytes(content)
    lock.remove()
    second.join()
    assert tables[0].equals(plain.table)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
def test_workers_compare_the_same(tmp_path):
    model, how, edit = aw.load("tiny/llada"), aw.decoding.LowConfidence(3), aw.edits.hide_sinks(1)
    plain = aw.effect(model, PROMPTS, how, edit)
    shared = aw.effect(model, PROMPTS, how, edit, keep=tmp_path, engine=TWO)
    assert plain.table.equals(shared.table)


def ask(out, engine=None):
    more = {"contexts": "closed,gold", "limit": 3, "decoding": aw.decoding.LowConfidence(4)}
    more["edits"] = {"none": [], "sinks": [aw.edits.hide_sinks(1)]}
    return grid.evaluate(["tiny/llada"], "synthetic/one-hop", out=out, engine=engine, **more)


@pytest.mark.parametrize("engine", [HERE, pytest.param(TWO, marks=pytest.mark.slow)])
def test_answers_of_workers_are_the_same(tmp_path, monkeypatch, engine):
    plain, shared = ask(tmp_path / "a"), ask(tmp_path / "b", engine)
    assert plain.rows.equals(shared.rows)
    monkeypatch.setattr(loop, "_canvas_logits", None)  # what is there is not computed again
    for out in (tmp_path / "a", tmp_path / "b"):
        assert ask(out).rows.equals(plain.rows)
        assert ask(out, HERE).rows.equals(plain.rows)
    for path in (tmp_path / "a").rglob("items.jsonl"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    with pytest.raises(SpecError, match="say out="):
        ask(None, engine)


@pytest.mark.slow
def test_a_study_through_workers_is_the_same(tmp_path, monkeypatch):
    sizes = {"prompts": 5, "length": 8, "steps": 8, "items": 8, "rows": 5, "answer": 8}
    budget = aw.studies.Budget("small", **sizes, text_length=16, text_block=8)
    given = {"model": "wired/static-sink", "budget": budget}
    names = ["sinks/H2"]
    plain = aw.studies.study(names, **given, out=tmp_path / "a")
    shared = aw.studies.study(names, **given, out=tmp_path / "b", engine=TWO)
    assert plain.claims.equals(shared.claims)
    assert plain["sinks/H2"].verdict is not None
    monkeypatch.setattr(loop, "_canvas_logits", None)  # what is there is not computed again
    for out, engine in (("b", None), ("a", TWO)):
        again = aw.studies.study(names, **given, out=tmp_path / out, engine=engine)
        assert again.claims.equals(plain.claims)
