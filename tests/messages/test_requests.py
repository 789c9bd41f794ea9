"""What a run, a replay or a fork cannot do is refused before anything is computed or claimed."""

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchError, SpecError, TraceError
from anchorwatch.trace.atomic_io import find_damage
from strategies import load

P, D = aw.probes, aw.decoding
ASK = "Passage: Lena was born in Oslo.\nQuestion: Where was Lena born?\nAnswer:"
FOUR = D.LowConfidence(8, 4)


@pytest.fixture(scope="module")
def trace():
    return aw.run(load("tiny/llada"), ASK, FOUR, probes=())


CALLS = {
    "run": lambda model, _, probes: aw.run(model, ASK, FOUR, probes=probes),
    "plan": lambda model, _, probes: aw.plan(model, ASK, FOUR, probes=probes),
    "run_many": lambda model, _, probes: aw.run_many(model, [ASK], FOUR, probes=probes),
    "replay": lambda model, trace, probes: aw.replay(model, trace, probes),
    "fork": lambda model, trace, probes: aw.fork(model, trace, 1, probes=probes),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("probes", "got"),
    [
        (P.received(), r"got received\(\)"),
        ([P.received], "got the class received"),
        (["received"], "got 'received'"),
        ("received", "got 'received'"),
        (None, "got None"),
    ],
)
def test_probes_are_a_list_of_values(trace, call, probes, got):
    says = r"probes is a list of values, for example \[aw.probes.received\(\)\]: "
    with pytest.raises(SpecError, match=says + got):
        CALLS[call](load("tiny/llada"), trace, probes)


@pytest.mark.parametrize("call", CALLS)
def test_a_generator_of_probes_is_read_once(trace, call):
    found = CALLS[call](load("tiny/llada"), trace, (probe for probe in [P.entropy()]))
    found = found[0] if isinstance(found, list) else found
    if isinstance(found, aw.Trace):
        assert not np.isnan(found["entropy"].values[1:]).any()
        assert [probe["name"] for probe in found.manifest["probes"]] == ["entropy"]
    else:
        assert [field.name for field in found.fields] == ["entropy"]


@pytest.mark.parametrize(
    ("model", "decoding", "probe", "says"),
    [
        ("tiny/llada", FOUR, P.received(["mask"]), "no query group is called 'mask': expected one"),
        ("tiny/llada", FOUR, P.received(steps=[99]), r"nothing: this run has 0 to 3"),
        ("tiny/llada", FOUR, P.region_flow(), r"aw.replay\(..., regions=...\) for a trace"),
        ("tiny/arm", D.LeftToRight(8), P.qk_geometry(rotary="before"), r"say cache=False"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_place_is_taken(
    tmp_path, model, decoding, probe, says
):
    with pytest.raises(SpecError, match=says):
        aw.plan(load(model), ASK, decoding, probes=[probe])
    with pytest.raises(SpecError, match=says):
        aw.run(load(model), ASK, decoding, probes=[probe], out=tmp_path / "a.trace")
    assert list(tmp_path.iterdir()) == []


def test_steps_that_a_shorter_run_does_not_have_are_left_out():
    found = aw.run(load("tiny/llada"), ASK, FOUR, probes=[P.entropy(steps=[0, 99])])
    assert np.isnan(found["entropy"].values).all(axis=(1, 2)).tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: P.received(layers=[]), r"layers=\[\] names none: name at least one"),
        (lambda: P.received(groups=()), r"groups=\[\] names none"),
        (lambda: P.received(steps=[]), r"steps=\[\] names none"),
        (lambda: P.pattern(heads=np.array([], int)), r"heads=\[\] names none"),
        (lambda: P.received(dtype="float64"), "expected float16 or float32"),
    ],
)
def test_a_probe_that_names_nothing_is_refused(make, says):
    with pytest.raises(SpecError, match=says):
        make()


@pytest.mark.parametrize(
    "given",
    [
        {"seed": 99},
        {"probes": [P.entropy()]},
        {"probes": ()},
        {"budget": 1},
        {"regions": {"a": (0, 4)}},
        {"decoding": FOUR},
        {"out": "b.trace"},
    ],
)
def test_a_resume_refuses_what_it_would_ignore(tmp_path, given):
    with pytest.raises(
        SpecError, match=r"its probes, edits, seed and budget too: run\(model, resume="
    ):
        aw.run(load("tiny/llada"), resume=tmp_path / "a.trace", **given)


@pytest.mark.parametrize(
    ("regions", "says"),
    [
        ({"x": "Lena"}, "'Lena' occurs 2 times in the prompt: give more words"),
        ({"x": "Bergen"}, "'Bergen' occurs 0 times in the prompt: give words that are in it"),
        ([("x", (0, 3))], r"are not names and parts of a prompt: say \{'passage': 'some words"),
        ({"x": slice(0, 10)}, r"is slice\(0, 10, None\): give words of the prompt, \(begin, end\)"),
        ({"x": (0, 3.5)}, r"is \(0, 3.5\): give words"),
        ({"x": (0, 3, 5)}, "give words"),
        ({"x": (-3, 3)}, "give words"),
        ({"x": (5, 5)}, r"'x', \(5, 5\), holds no token .*: its 36 tokens begin elsewhere"),
        ({"x": range(40, 50)}, "holds no token of the prompt"),
        ({3: (0, 20)}, "a region is called 3, which is no name"),
        ({"": (0, 20)}, "a region is called '', which is no name"),
    ],
)
def test_regions_say_what_they_may_be(regions, says):
    with pytest.raises(SpecError, match=says):
        aw.plan(load("tiny/llada"), ASK, FOUR, regions=regions)


def test_regions_of_what_is_no_text_are_positions():
    model = load("tiny/llada")
    for prompt in ([40, 41, 42], [{"role": "user", "content": "born in Oslo"}]):
        with pytest.raises(SpecError, match=r"give token positions, range\(begin, end\)"):
            aw.plan(model, prompt, FOUR, regions={"x": "born"})
        aw.plan(model, prompt, FOUR, regions={"x": range(1, 3)})


@pytest.mark.parametrize(
    ("regions", "says"),
    [
        ([{"a": "born in"}], "2 prompts and 1 regions: give a mapping for each, or one"),
        ([{"a": "born in"}, {"b": "born in"}], "the same region names, in the same order"),
        ([{"a": "born in"}, None], "the same region names"),
        ([3, 3], "are not names and parts"),
        (3, "2 prompts and 1 regions"),
    ],
)
def test_several_prompts_have_regions_of_the_same_names(regions, says):
    with pytest.raises(SpecError, match=says):
        aw.run_many(load("tiny/llada"), [ASK, ASK], FOUR, regions=regions)


def test_regions_of_a_trace_are_words_or_ranges(trace):
    model = load("tiny/llada")
    with pytest.raises(SpecError, match=r"say range\(0, 4\) for token positions, or give the word"):
        aw.replay(model, trace, (), regions={"a": (0, 4)})
    ids = aw.run(model, [40, 41, 42], FOUR, probes=())
    with pytest.raises(SpecError, match=r"does not give back its tokens.*: give token positions"):
        aw.replay(model, ids, (), regions={"a": "a"})
    with pytest.raises(SpecError, match=r"aw.replay\(..., regions=...\) for a trace"):
        aw.replay(model, trace, [P.region_flow()])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m, t: aw.replay(m, t, steps=8), r"steps=8 is not a list: say \[8\]"),
        (lambda m, t: aw.replay(m, t, steps=[]), r"steps=\[\] names none"),
        (lambda m, t: aw.replay(m, t, steps=[0.5]), "0.5 is not a whole number"),
        (
            lambda m, t: aw.replay(m, t, [P.entropy(steps=[1])], steps=[0, 2]),
            r"entropy\(steps=\(1,\)\) looks at none of the steps \[0, 2\]: name one of them",
        ),
        (
            lambda m, t: aw.fork(m, t, 2, probes=[P.entropy(steps=[0])]),
            "looks at none of the steps 2 to 3",
        ),
        (lambda m, t: aw.fork(m, t, 1.5), "step=1.5 is not a whole number: .* steps 0 to 3"),
        (lambda m, t: aw.fork(m, t, True), "step=True is not a whole number"),
        (lambda m, t: aw.fork(m, t, 1, seed="a"), "seed='a' is not a whole number from 0"),
        (lambda m, t: aw.fork(m, t, 1, seed=-1), "seed=-1 is not a whole number from 0"),
        (lambda m, t: aw.replay(m, "a.trace"), r"'a.trace' is not a trace: aw.read\(path\)"),
        (lambda m, t: aw.fork(m, None, 1), "None is not a trace"),
        (lambda m, t: aw.diff("a.trace", t), r"'a.trace' is not a trace: aw.read\(path\)"),
        (lambda m, t: aw.diff(t, 3), "3 is not a trace"),
        (lambda m, t: aw.run(m, ASK, FOUR, budget="1GB"), "budget='1GB' is not a number of bytes"),
        (lambda m, t: aw.run_many(m, [ASK], FOUR, budget=None), "budget=None is not a number"),
        (lambda m, t: aw.run_many(m, [ASK], FOUR, seed="a"), "seed='a' is not a whole number"),
        (lambda m, t: aw.run_many(m, 5, FOUR), r"takes a list of prompts: give \[prompt\]"),
    ],
)
def test_wrong_arguments_are_one_line_each(trace, call, says):
    with pytest.raises(AnchorwatchError, match=says) as error:
        call(load("tiny/llada"), trace)
    assert "\n" not in str(error.value)


def test_the_budget_of_several_runs_counts_all_of_them():
    model, probes = load("tiny/llada"), [P.received(["all"])]
    one = aw.plan(model, ASK, FOUR, probes=probes).peak_bytes
    aw.run_many(model, [ASK], FOUR, probes=probes, budget=one)
    with pytest.raises(
        SpecError, match=r"these runs together would keep .*, or fewer prompts at a time"
    ):
        aw.run_many(model, [ASK] * 3, FOUR, probes=probes, budget=one)


def test_what_is_no_trace_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.py").write_text("x = 1")
    for place, says in (
        (".", "a folder without a zarr.json"),
        ("file.py", "file.py is a file and cannot be read as a trace: a trace is a folder"),
        ("none.trace", "`anchorwatch run ... -o none.trace` makes one"),
    ):
        with pytest.raises(TraceError, match=says):
            aw.read(place)
    assert "a trace is a folder" in find_damage("file.py")[0]
    for given in ({"prompt": ASK, "out": "."}, {"resume": "."}):
        with pytest.raises(TraceError, match=r"is a folder: give the trace a name, lena\.trace"):
            aw.run(load("tiny/llada"), **given)
