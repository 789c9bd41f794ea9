"""What is more than a machine has, or than can be finished, is refused with a number that fits."""

import re
import resource
from pathlib import Path

import pytest

import anchorwatch as aw
from anchorwatch import evaluation, studies, training
from anchorwatch.cli import output, run
from anchorwatch.errors import AnchorwatchError, SpecError
from anchorwatch.metrics import table_files
from anchorwatch.trace import machine_limits as limits
from strategies import load

D = aw.decoding
SMALL = 10**8
"""Bytes of a machine that has little."""


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(limits, "memory_bytes", lambda: SMALL)


def spec(**more):
    shape = {"layers": 1, "width": 8, "heads": 1} | more.pop("model", {})
    said = {"model": shape, "length": 32, "batch": 2, "updates": 1} | more
    return said | {"corpus": {"vocabulary": 512, "mix": [{"kind": "backcopy"}]}}


def fit(tmp_path, **more):
    return training.fit(spec(**more), tmp_path / "run")


def written(steps, length=4):
    return aw.plan(load("tiny/llada"), "the tide", D.LowConfidence(length, steps), probes=())


def repeated(repeats):
    how, edit = D.LowConfidence(2), aw.edits.hide_keys([0])
    return aw.effect(load("tiny/llada"), ["the tide"], how, edit, control=None, repeats=repeats)


def scored(**more):
    return evaluation.loglikelihood(load("tiny/llada"), "the", [5] * 12, **more)


REFUSED = {
    "steps": (lambda _: written(4 * 10**9), "4,000,000,000 forward passes"),
    "steps that are kept": (lambda _: written(10**9), "the frames of the run would take at least"),
    "repeats": (lambda _: repeated(10**12), "6,000,000,000,000|8,000,000,000,000 forward passes"),
    "runs": (lambda _: repeated(5 * 10**7), "these runs together would take at least 400 GB"),
    "passes": (lambda _: scored(passes=10**12, method="counts"), "1,000,000,000,000 forward"),
    "draws": (lambda _: scored(passes=10**9, method="counts"), "the draws of one answer would"),
    "limit": (
        lambda _: evaluation.evaluate(load("tiny/llada"), "synthetic/one-hop", limit=10**12),
        "2,000,000,000,000 forward passes",
    ),
    "items": (
        lambda _: evaluation.evaluate(
            load("tiny/llada"), "synthetic/one-hop", contexts="closed", limit=10**9
        ),
        "these items would take at least 150 GB",
    ),
    "layers": (
        lambda place: fit(place, model={"layers": 10**8}),
        "the network would take at least",
    ),
    "batch": (lambda place: fit(place, batch=10**9), "the rows of one pass would take at least"),
    "updates": (lambda place: fit(place, updates=10**12), "1,000,000,000,000 forward passes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_more_than_there_is_is_refused_with_what_fits(monkeypatch, tmp_path, name):
    monkeypatch.setattr(limits, "memory_bytes", lambda: 24 * 10**9)
    ask, says = REFUSED[name]
    with pytest.raises(SpecError, match=says) as refused:
        ask(tmp_path)
    assert re.search(r"(are the most|and there are 24 GB): say [\w.]+ ?= ?\d+", str(refused.value))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("digits", [9, 18, 30, 5000])
def test_a_length_beyond_the_model_is_refused_before_a_canvas_is_made(digits):
    with pytest.raises(SpecError, match=r"at most (511|1,000,000,000,000,000,000)") as refused:
        aw.plan(load("tiny/llada"), [5], D.LowConfidence(10**digits), probes=())
    assert len(str(refused.value)) < 300


def test_what_is_proposed_instead_is_accepted(small):
    with pytest.raises(SpecError, match="say steps=") as refused:
        written(10**9)
    fits = int(re.search(r"steps=(\d+) at most", str(refused.value))[1])
    assert written(fits).forward_passes == fits
    with pytest.raises(SpecError, match=f"say steps={fits} at most"):
        written(2 * fits)


def test_rows_of_a_pass_are_counted_against_the_device(monkeypatch):
    model, prompts, how = load("tiny/llada"), ["the tide"] * 4, D.LowConfidence(8, 1)
    positions = len(model.encode("the tide")) + 8
    row = positions * model.vocab_size * 4
    monkeypatch.setattr(limits, "memory_bytes", lambda: 3 * row)
    with pytest.raises(SpecError, match=r"logits of one forward pass .* say batch=3 at most"):
        aw.run_many(model, prompts, how, probes=(), batch=4)
    assert len(aw.run_many(model, prompts, how, probes=(), batch=3)) == 4
    with pytest.raises(SpecError, match=r"logits of one forward pass .* say batch=3 at most"):
        aw.effect(model, prompts, how, aw.edits.no_op(), control=None, batch=4)
    monkeypatch.setattr(limits, "memory_bytes", lambda: 10 * 12 * model.vocab_size * 4)
    with pytest.raises(SpecError, match="say batch=10 at most"):
        scored(passes=64, method="counts", batch=10**12)


def test_a_batch_larger_than_what_is_asked_costs_nothing():
    model, how = load("tiny/llada"), D.LowConfidence(2, 1)
    assert len(aw.run_many(model, ["the"], how, probes=(), batch=10**12)) == 1
    assert scored(method="pseudo", batch=10**12).passes == 12


def test_top_k_beyond_the_vocabulary_keeps_every_token():
    model = load("tiny/llada")
    one, other = (
        aw.run(model, "the", D.DreamOrder(2, temperature=1.0, top_k=k), probes=())
        for k in (10**12, None)
    )
    assert one.text == other.text


def test_a_block_of_a_great_length_is_refused_at_once():
    with pytest.raises(
        SpecError, match=r"block=7 does not divide .* use one of 1, 2, 4, 5, .*\.\.\."
    ):
        D.LowConfidence(10**12, block=7)
    with pytest.raises(SpecError, match=r"use one of 1, 2, 3, 6$"):
        D.LowConfidence(6, block=4)


def test_a_range_of_very_many_numbers_is_refused():
    from anchorwatch.generation.parse import parse_edit

    assert parse_edit("hide-keys:0-3").positions == (0, 1, 2, 3)
    for word in ("hide-keys:0-999999999999", "hide-keys:0,steps=0-99999999999"):
        with pytest.raises(SpecError, match="more than 1,048,576 numbers: name fewer"):
            parse_edit(word)


def test_memory_is_the_least_of_machine_group_and_process(monkeypatch, tmp_path):
    monkeypatch.setattr(limits, "_GROUPS", tmp_path)
    whole = limits.memory_bytes()
    assert whole > 0
    (tmp_path / "memory.max").write_text("max\n")
    assert limits.memory_bytes() == whole
    (tmp_path / "memory.max").write_text("4096\n")
    assert limits.memory_bytes() == 4096
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("8192\n")
    assert limits.memory_bytes() == 8192
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2048, resource.RLIM_INFINITY))
    assert limits.memory_bytes() == 2048


@pytest.mark.parametrize("digits", [0, 3, 6, 30, 400, 5000])
def test_any_number_can_be_said(digits):
    assert len(limits.size(10**digits)) < 30
    assert len(limits.count(10**digits)) < 60


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (f"length = {DEEP}", "is not TOML"),
        (f"length = {'1' * 5000}", "is not TOML: Exceeds the limit"),
        ("length = \0", "is not TOML"),
        ("", "model is missing"),
        ("a" + ".a" * 50_000 + " = 1", "is not TOML: a key has 100 parts or more"),
        ("b = {a" + ".a" * 50_000 + " = 1}", "is not TOML: a key has 100 parts or more"),
    ],
)
def test_a_spec_that_cannot_be_parsed_is_said(tmp_path, content, says):
    path = tmp_path / "spec.toml"
    path.write_text(content)
    with pytest.raises(AnchorwatchError, match=says):
        training.read(path)


@pytest.mark.parametrize("value", [DEEP, "1" * 5000])
def test_a_setting_that_cannot_be_parsed_is_said(tmp_path, value):
    path = tmp_path / "spec.toml"
    path.write_text("length = 8\n")
    with pytest.raises(SpecError, match=r"--set length=.*say --set optimizer.lr=1e-3"):
        training.read(path, [f"length={value}"])


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"\0", b'"'])
def test_a_table_of_variants_that_is_none_is_said(tmp_path, content):
    from anchorwatch.training.variants import variants

    path = tmp_path / "variants.csv"
    path.write_bytes(content)
    with pytest.raises(AnchorwatchError, match="make variants"):
        variants(path)


NUL = "a\0b"


@pytest.mark.parametrize(
    "use",
    [
        lambda: aw.read(NUL),
        lambda: aw.load(NUL),
        lambda: aw.run(load("tiny/llada"), "the", D.LowConfidence(2), probes=(), out=NUL),
        lambda: evaluation.evaluate(load("tiny/llada"), "synthetic/one-hop", limit=1, out=NUL),
        lambda: evaluation.task(NUL),
        lambda: training.read(NUL),
        lambda: run.read_prompts(NUL, [], None),
        lambda: output.refuse_path(Path(NUL)),
        lambda: table_files.check_target(f"{NUL}.csv", "table", table_files.KINDS),
        lambda: studies.plan(["sinks/H1"], out=NUL),
    ],
)
def test_a_name_that_no_file_can_have_is_refused(monkeypatch, tmp_path, use):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AnchorwatchError):
        use()
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_an_end_is_not_read_to_it():
    from anchorwatch.trace import input_files as inputs

    with pytest.raises(OSError, match="zero is a device, not a plain file"):
        inputs.read_plain(Path("/dev/zero"), most=1000)
    with Path("/dev/zero").open("rb") as endless:
        assert inputs.read_bounded(endless, 1000) is None
    with pytest.raises(SpecError, match=r"/dev/zero is a device: name a \.txt or \.jsonl"):
        run.read_prompts("/dev/zero", [], None)
