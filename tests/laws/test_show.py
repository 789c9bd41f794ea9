"""What is shown of a trace: every character in its place, no control of the terminal, no change."""

import dataclasses
import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import anchorwatch as aw
import checkpoints
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.trace.escape import one_line, visible
from anchorwatch.trace.render_terminal import film, frames_json, show
from anchorwatch.trace.trace import FRESH, MASKED, PROMPT, Trace
from strategies import load

PLAIN = aw.decoding.LowConfidence(2)
FOREIGN = "שלום 世界 🙂 é"
EVIL = "a\x1b]0;owned\x07\x1b[31mb\x9b31mc\u202ed\u2028e\r\x7f\udc9b"


def drawn(trace, step=None, **options):
    """Plain text, as a pipe gets it."""
    console = Console(file=io.StringIO(), width=options.pop("width", 60))
    show(trace, step, console=console, **options)
    return console.file.getvalue()


def forged(trace, dataset=None, **manifest):
    """The trace as another program might have written it."""
    held = trace.dataset() if dataset is None else dataset
    return Trace(held, trace.manifest | manifest)


@pytest.fixture(scope="module")
def trace():
    return aw.run(load("tiny/llada"), "Lena was born in", aw.decoding.LowConfidence(8, 4))


@pytest.fixture(scope="module")
def gaps():
    model = load("tiny/llada")
    return aw.run(model, canvas=model.encode("the <|mask|> is <|mask|><|mask|> deep"))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """A model whose tokens are GPT-2's letters for bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(checkpoints.SMALL, "vocab_size", 264)
        tokenizer = checkpoints.write_tokenizer(tmp_path_factory.mktemp("bytes"))
    return dataclasses.replace(load("tiny/llada"), tokenizer=tokenizer)


# characters


def test_characters_split_over_byte_fallback_tokens_are_whole():
    trace = aw.run(load("tiny/llada"), FOREIGN, PLAIN, probes=())
    assert "�" in trace.token(int(trace.canvas[0, 1])), "the token alone is half a character"
    assert FOREIGN in drawn(trace)
    assert FOREIGN in repr(trace)
    held = frames_json(trace, 0)[0]["positions"][1]
    assert bytes.fromhex(held["bytes"]) == "ש".encode()[:1]


def test_characters_split_over_byte_level_tokens_are_whole(byte_level):
    trace = aw.run(byte_level, FOREIGN, PLAIN, probes=())
    assert len(trace.canvas[0]) - 2 == len(FOREIGN.encode())
    assert FOREIGN in drawn(trace)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(texts.filter(lambda text: "<|mask|>" not in text))  # hypothesis reads our constants
def test_any_text_is_spelled_as_the_tokenizer_decodes_it(text):
    model = load("tiny/llada")
    trace = aw.run(model, text, aw.decoding.LowConfidence(1), probes=())
    ids = trace.canvas[0, :-1].tolist()
    assert trace.spell(ids).lstrip(" ") == model.tokenizer.decode(ids).lstrip(" ")


def test_half_a_character_is_a_mark_and_never_an_error(trace):
    halves = forged(
        trace, token_bytes={"7": "e4b8", "8": "96"}, tokens={"7": "�", "8": "�", "9": "x"}
    )
    assert halves.spell([7, 8, 9, 7, 9, 8]) == "世x�x�"


# safety


def test_nothing_foreign_drives_the_terminal(trace):
    said = visible(EVIL)
    assert said == "a·]0;owned··[31mb·31mc·d·e␍··"
    assert visible("one\ntwo") == "one⏎\ntwo"
    assert one_line("one\ntwo") == "one⏎two"
    assert visible("שלום é 🙂") == "שלום é 🙂"
    tokens = dict.fromkeys(trace.manifest["tokens"], EVIL)
    model = trace.manifest["model"] | {"source": EVIL}
    evil = forged(trace, tokens=tokens, prompt_text=EVIL, answer_text=EVIL, model=model)
    for text in (repr(evil), drawn(evil), drawn(evil, 2)):
        assert "owned" in text
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028\ud800-\udfff]", text)
    assert len(repr(evil).splitlines()) == 5


# the film


def test_the_film_has_the_prompt_once_and_a_line_for_each_frame(trace):
    lines = drawn(trace).splitlines()
    assert lines[0].strip() == "Lena was born in"
    assert set(lines[1]) == {"─"}
    assert [line[:5] for line in lines[2:-1]] == [f"{i:>4} " for i in range(5)]
    assert lines[2][5:] == "░" * 8
    assert lines[-1].split() == ["prompt", "special", "░", "masked", "‹fresh›", "written"]


def test_wrapped_lines_stand_under_the_frame_s_first_token(trace):
    for line in drawn(trace, width=30).splitlines()[2:-4]:
        assert len(line) <= 30
        assert re.match(r" {3}\d .| {5}\S", line), line


def test_fresh_tokens_differ_from_written_ones_without_colour(trace):
    last = drawn(trace).splitlines()[-2]
    fresh = {p for p in range(12) if trace.role[-1, p] == FRESH}
    marked = " ".join(re.findall("‹(.*?)›", last)).split()
    assert [trace.token(int(trace.canvas[-1, p])).strip() for p in sorted(fresh)] == marked
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system="256")
    console.print(film(trace))
    assert "‹" not in console.file.getvalue()
    console = Console(file=io.StringIO(), width=60, force_terminal=True, no_color=True)
    console.print(film(trace))
    assert "‹" in console.file.getvalue()


def test_first_and_last_frame_are_always_shown_and_the_film_says_which(trace):
    long = aw.run(load("tiny/llada"), "the", aw.decoding.LowConfidence(40), probes=())
    lines = drawn(long, width=300).splitlines()
    shown = [int(line[:4]) for line in lines[2:-2]]
    assert (len(shown), shown[0], shown[-1]) == (24, 0, 40)
    said = f"24 of 41 frames shown: {', '.join(map(str, shown))}; --all shows every frame"
    assert lines[-1].startswith(said)
    assert len(drawn(long, width=300, every=True).splitlines()) == 2 + 41 + 1
    console = Console(file=io.StringIO(), width=200)
    console.print(film(long, most=1))
    assert "2 of 41 frames shown: 0, 40;" in console.file.getvalue()


def test_a_canvas_with_gaps_is_shown_whole_in_every_frame(gaps):
    lines = drawn(gaps).splitlines()
    assert lines[0] == "   0  the ░ is ░░ deep"
    assert all(" is" in line and line.endswith(" deep") for line in lines[:-1])
    assert len(lines) == gaps.num_steps + 2
    assert "  prompt    the ░ is ░░ deep\n" in repr(gaps)
    assert gaps.is_infill


def test_gaps_at_the_end_are_an_answer_like_any_other(trace):
    model = load("tiny/llada")
    infilled = aw.run(
        model, canvas=trace.canvas[0].tolist(), decoding=aw.decoding.LowConfidence(steps=4)
    )
    assert not infilled.is_infill
    assert drawn(infilled) == drawn(trace)


def test_what_is_absent_takes_no_place():
    trace = aw.run(load("tiny/arm"), "the anchor", aw.decoding.LeftToRight(2), probes=())
    lines = drawn(trace).splitlines()
    assert lines[2].rstrip() == "   0"
    assert "░" not in "".join(lines[:-1])


@pytest.mark.parametrize("step", [5, -6, 99])
def test_a_step_that_is_not_there_is_refused_in_one_line(trace, step):
    for look in (lambda: drawn(trace, step), lambda: frames_json(trace, step)):
        with pytest.raises(
            SpecError, match=f"step {step} is not in the trace: it has frames 0 to 4"
        ):
            look()
    assert frames_json(trace, -1) == frames_json(trace)[-1:]


# nobody changes a trace


def test_arrays_of_a_trace_are_read_only(tmp_path):
    probes = (aw.probes.received(), aw.probes.pattern())
    live = aw.run(load("tiny/llada"), [10] * 60, aw.decoding.LowConfidence(30, 30), probes=probes)
    held = aw.read(live.write(tmp_path / "a.trace"))
    assert held._dataset["pattern"].nbytes > 1 << 20, "large enough to be loaded when used"
    for trace in (live, held):
        for array in (trace.canvas, trace.role, trace.committed_at, trace.logprob, trace.masked):
            assert not array.flags.writeable
        assert not trace["pattern"].isel(pick=3).values.flags.writeable
        for name in trace.fields:
            assert not trace[name].values.flags.writeable, name
            assert np.shares_memory(trace[name].values, trace[name].values), "read once"
            with pytest.raises(ValueError, match=r"read-only|is a view"):
                trace[name][...] = 0
        trace["canvas"].values = np.zeros_like(trace.canvas)
        trace["canvas"].attrs["missing"] = 0
        assert trace["canvas"].attrs["missing"] == -1
        mine = trace.dataset().copy(deep=True)
        mine["canvas"][0, 0] = 5
        mine["pattern"][0] = 5
        assert trace.canvas[0, 0] == 10
        assert trace["pattern"].values.max() <= 1


def test_a_stored_array_that_was_not_read_yet_cannot_be_written_either(tmp_path):
    decoding, probes = aw.decoding.LowConfidence(8), (aw.probes.pattern(),)
    live = aw.run(load("tiny/llada"), [10] * 60, decoding, probes=probes)
    path = live.write(tmp_path / "a.trace")
    for taken in (lambda trace: trace["pattern"], lambda trace: trace.dataset()["pattern"]):
        trace = aw.read(path)
        assert trace["pattern"].nbytes > 1 << 20
        with pytest.raises((TypeError, ValueError)):
            taken(trace)[0] = 5
        np.testing.assert_array_equal(trace["pattern"].values, live["pattern"].values)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model": "llada"}, "the manifest's model is 'llada', not of type dict"),
        ({"model": {"source": "a"}}, "the manifest's model has family None, not of type str"),
        ({"decoding": []}, r"the manifest's decoding is \[\], not of type dict"),
        ({"decoding": {"name": "Beam"}}, "no decoding is called 'Beam'"),
        ({"decoding": {"name": ["Beam"]}}, "unhashable"),
        ({"decoding": {"name": "LowConfidence", "steps": 0}}, "steps=0 is not a whole number"),
        ({"tokens": None}, "the manifest's tokens is None, not of type dict"),
        ({"seed": "4"}, "the manifest's seed is '4', not of type int"),
        ({"seed": True}, "the manifest's seed is True, not of type int"),
        ({"answer_positions": []}, "its answer is not at positions 0 to 11"),
        ({"answer_positions": [4, 12]}, "its answer is not at positions 0 to 11"),
        ({"answer_positions": [4, -1]}, "its answer is not at positions 0 to 11"),
        ({"answer_positions": ["4"]}, "its answer is not at positions 0 to 11"),
        ({"answer_positions": [5, 4]}, "its answer positions are not in order"),
        ({"token_bytes": {"4": "zz"}}, "non-hexadecimal"),
        ({"token_bytes": ["zz"]}, "no attribute 'values'"),
        ({"seed": "\x1b[31m\n"}, r"the manifest's seed is '\\x1b\[31m\\n', not of type int"),
    ],
)
def test_a_foreign_manifest_is_refused_in_one_line(trace, tmp_path, wrong, says):
    path = forged(trace, **wrong).write(tmp_path / "a.trace")
    with pytest.raises(
        TraceError, match=f"cannot be read as a trace, make it again: .*{says}"
    ) as told:
        aw.read(path)
    assert str(told.value).isprintable()


def test_foreign_arrays_are_refused_in_one_line(trace, tmp_path):
    def role(dataset):
        dataset["role"][1, 3] = 6
        return dataset

    changes = {
        "role holds 0 to 6: roles are 0 to 5": role,
        "canvas is float32 over frame, position": lambda d: d.assign(
            canvas=d["canvas"].astype("f4")
        ),
        "role is int8 over position, frame": lambda d: d.assign(role=d["role"].T),
        "4 frames do not fit 4 steps": lambda d: d.isel(frame=slice(4)),
    }
    for number, (says, change) in enumerate(changes.items()):
        dataset = change(trace.dataset().copy(deep=True))
        path = forged(trace, dataset).write(tmp_path / f"{number}.trace")
        with pytest.raises(TraceError, match=says):
            aw.read(path)


def test_a_name_too_long_for_the_disk_is_refused_in_one_line(trace, tmp_path):
    with pytest.raises(
        TraceError, match=r"the name aaaaaaaaaaaaaaaaaaaa\.\.\. is too long: choose a"
    ):
        trace.write(tmp_path / ("a" * 300))
    assert list(tmp_path.iterdir()) == []


def test_the_log_probability_says_under_which_logits_it_is(trace):
    assert "under the logits the decoding used" in trace["logprob"].attrs["long_name"]


def test_roles_of_a_film_are_those_of_the_trace(trace, gaps):
    for held in (trace, gaps):
        for index in range(len(held.canvas)):
            spelled = "".join(text for _, text in held.stretches(index))
            assert spelled.count("░") == int((held.role[index] == MASKED).sum())
            assert {kind for kind, _ in held.stretches(index)} == set(held.role[index].tolist())
    assert next(held.stretches(0))[0] == PROMPT
