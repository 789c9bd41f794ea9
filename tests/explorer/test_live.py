"""Runs changed from the page: what is asked for, who may ask, one fork at a time, saved forks."""

import http.client
import json
import re
import threading
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.cli import view as cli_view
from anchorwatch.errors import SpecError
from anchorwatch.explorer import encode
from anchorwatch.explorer.contract import PACKETS
from anchorwatch.explorer.live import BusyError, Change, Forks, Live, free_name
from anchorwatch.explorer.open import open_for_viewing
from anchorwatch.explorer.run_data import MissingError, Options, Run
from anchorwatch.explorer.server import LONGEST_BODY, Server
from anchorwatch.generation.candidates import likely_tokens
from anchorwatch.models.tokens import find_single_token
from anchorwatch.trace.trace import MASKED
from synthetic_traces import small_trace
from tolerances import SUMMED
from waiting import GUARD, listens, wait_until

PROMPT = "Passage: Lena was born in Oslo. Answer:"


@pytest.fixture(scope="module")
def model():
    return aw.load("tiny/llada")


@pytest.fixture(scope="module")
def trace(model):
    return aw.run(model, PROMPT, aw.decoding.LowConfidence(6, 6))


@pytest.fixture
def shown(model, trace, tmp_path):
    """(runs, forks) as the command line makes them, of a run on disk."""
    path = trace.write(tmp_path / "lena.trace")
    shared = cli_view.LockedModel(model, threading.Lock())
    opened = open_for_viewing(path)
    runs = [Run(opened, live=cli_view._live(shared, opened.trace)), Run(opened)]
    return runs, cli_view._forks(shared, runs, Options(), None)


def finish(forks):
    wait_until(lambda: forks.state.state != "running", "the end of the fork")
    return forks.state


def masked_at(trace, step):
    return int(np.flatnonzero(trace.role[step] == MASKED)[-1])


@pytest.mark.parametrize("step", [0, 2, 5])
def test_candidates_have_the_probabilities_that_the_run_committed_by(model, trace, step):
    likely = likely_tokens(model, trace, step)
    assert likely.positions.tolist() == np.flatnonzero(trace.role[step] == MASKED).tolist()
    assert (np.diff(likely.probabilities, axis=-1) <= 0).all()
    assert model.mask_id not in likely.tokens
    spread = np.exp(model.logprobs(trace.canvas[step].astype(np.int64).tolist()).numpy())
    for row, position in enumerate(likely.positions):
        wanted = spread[position, likely.tokens[row]]
        np.testing.assert_allclose(likely.probabilities[row], wanted, rtol=SUMMED)
    (committed,) = np.flatnonzero(trace.committed_at == step)
    row = likely.positions.tolist().index(committed)
    rank = likely.tokens[row].tolist().index(trace.own[committed])
    wanted = np.exp(trace.logprob[committed])
    np.testing.assert_allclose(likely.probabilities[row, rank], wanted, rtol=SUMMED)


def test_candidates_of_an_edited_run_are_those_of_the_edited_run(model):
    hidden = aw.edits.hide_keys((0, 1))
    edited = aw.run(model, PROMPT, aw.decoding.LowConfidence(4, 4), edits=[hidden])
    likely = likely_tokens(model, edited, 1)
    (committed,) = np.flatnonzero(edited.committed_at == 1)
    row = likely.positions.tolist().index(committed)
    rank = likely.tokens[row].tolist().index(edited.own[committed])
    wanted = np.exp(edited.logprob[committed])
    np.testing.assert_allclose(likely.probabilities[row, rank], wanted, rtol=SUMMED)


def test_an_autoregressive_run_has_no_masked_positions():
    model = aw.load("tiny/arm")
    trace = aw.run(model, "the anchor", aw.decoding.LeftToRight(3, stop=False), probes=())
    with pytest.raises(SpecError, match="an autoregressive run has none"):
        likely_tokens(model, trace, 0)


def test_the_packet_has_candidates_with_their_texts(shown, trace, model):
    runs, _ = shown
    arrays, meta = encode.unpack(runs[0].packet("candidates-2"))
    assert arrays["token"].shape == arrays["probability"].shape == (4, 5)
    dtypes = {name: array.dtype for name, array in arrays.items()}
    assert dtypes == {name: np.dtype(dtype) for name, dtype in PACKETS["candidates"].items()}
    assert {str(one) for one in arrays["token"].ravel()} == set(meta["texts"])
    with pytest.raises(MissingError, match="--model"):
        runs[1].packet("candidates-2")
    with pytest.raises(MissingError):
        runs[0].packet("candidates-6")


CHANGES = {
    "commit": {"position": 13, "token": 5},
    "hide": {"position": 0},
    "knock_out": {"layer": 0, "head": 1},
    "sink_token": {},
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_the_fork_that_python_makes(shown, trace, model, kind):
    runs, forks = shown
    fields = {"kind": kind, "step": 2, **CHANGES[kind]}
    if kind == "commit":
        fields["position"] = masked_at(trace, 2)
    change = Change.from_json(fields)
    forks.start(0, runs[0].live, trace, change)
    state = finish(forks)
    assert (state.state, state.error, state.run) == ("done", "", 2)
    wanted = aw.fork(model, trace, 2, edits=[change.as_edit()])
    assert runs[2].trace.digest() == wanted.digest()
    assert runs[2].header()["fork"] == 2
    np.testing.assert_array_equal(runs[2].trace.canvas[:3], trace.canvas[:3])
    if kind == "commit":
        assert runs[2].trace.canvas[3, fields["position"]] == 5


@pytest.mark.parametrize("typed", ["ship", " ship", "␣ship"])
def test_a_word_of_ones_own_is_written(shown, trace, model, typed):
    runs, forks = shown
    position = masked_at(trace, 2)
    fields = {"kind": "write", "step": 2, "position": position, "text": typed}
    forks.start(0, runs[0].live, trace, Change.from_json(fields))
    state = finish(forks)
    assert (state.state, state.error) == ("done", "")
    written = runs[2].trace
    assert written.token(int(written.canvas[3, position])) == " ship"
    assert state.name == f"fork at step 2, “ship” at position {position}"


def test_a_word_that_is_no_token_is_refused_with_what_it_is(shown, trace):
    runs, forks = shown
    fields = {"kind": "write", "step": 2, "position": 13, "text": "ship anchor"}
    says = "“ship anchor” is 2 tokens of this model (“ship”, “anchor”): a position takes one token"
    with pytest.raises(SpecError, match=re.escape(says)):
        forks.start(0, runs[0].live, trace, Change.from_json(fields))
    assert forks.state.state == "idle"
    unknown = SimpleNamespace(unk_token_id=0, encode=lambda *given, **more: [0])
    for tokenizer, says in ((unknown, "is no token of this model"), (None, "has no tokenizer")):
        with pytest.raises(SpecError, match=says):
            find_single_token(tokenizer, "ship")
    for text in ("", "x" * 81, 5, None):
        with pytest.raises(SpecError, match="text of a change is a word of at most 80"):
            Change.from_json({"kind": "write", "step": 2, "position": 13, "text": text})


def test_the_edits_of_a_run_stay_in_its_forks(shown, trace):
    runs, forks = shown
    forks.start(
        0, runs[0].live, trace, Change.from_json({"kind": "hide", "step": 1, "position": 0})
    )
    finish(forks)
    one = runs[2]
    forks.start(
        2, one.live, one.trace, Change.from_json({"kind": "hide", "step": 3, "position": 1})
    )
    assert finish(forks).run == 3
    hidden = {edit.positions for edit in runs[3].trace.edits}
    assert hidden == {(0,), (1,)}


def test_what_cannot_be_is_said_and_the_next_fork_goes(shown, trace):
    runs, forks = shown
    given = Change.from_json({"kind": "commit", "step": 2, "position": 0, "token": 5})
    forks.start(0, runs[0].live, trace, given)
    state = finish(forks)
    assert state.state == "failed"
    assert "which is given" in state.error
    assert len(runs) == 2
    forks.start(0, runs[0].live, trace, Change.from_json({"kind": "sink_token", "step": 2}))
    assert finish(forks).state == "done"


def test_one_fork_at_a_time_and_its_steps_are_told():
    trace, go, told = small_trace(), threading.Event(), threading.Event()

    def fork(step, edit, on_step):
        on_step(step)
        told.set()
        assert go.wait(GUARD)
        return trace

    live = Live(candidates=None, fork=fork, find_token=None)
    forks = Forks(lambda *given: 7, {})
    change = Change.from_json({"kind": "sink_token", "step": 3})
    forks.start(0, live, trace, change)
    assert told.wait(GUARD)
    assert (forks.state.state, forks.state.done) == ("running", 4)
    with pytest.raises(BusyError, match="wait until it is done"):
        forks.start(0, live, trace, change)
    go.set()
    assert finish(forks).run == 7
    with pytest.raises(SpecError, match="--forks FOLDER"):
        forks.save(7)
    with pytest.raises(SpecError, match="only forks are saved"):
        forks.save(0)


def test_a_fork_is_saved_beside_its_run_once(shown, trace, tmp_path):
    runs, forks = shown
    (tmp_path / "lena-fork1.trace").mkdir()  # somebody's own
    forks.start(0, runs[0].live, trace, Change.from_json({"kind": "sink_token", "step": 2}))
    finish(forks)
    assert forks.save(2) == "lena-fork1-2.trace"
    assert forks.save(2) == "lena-fork1-2.trace"
    again = aw.read(tmp_path / "lena-fork1-2.trace")
    assert again.digest() == runs[2].trace.digest()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lena-fork1-2.trace",
        "lena-fork1.trace",
        "lena.trace",
    ]


def test_free_names_are_free(tmp_path):
    assert free_name(tmp_path, "a").name == "a.trace"
    (tmp_path / "a.trace").symlink_to(tmp_path / "nowhere")
    assert free_name(tmp_path, "a").name == "a-2.trace"


def test_forks_go_to_the_folder_that_was_named(model, trace, tmp_path):
    shared = cli_view.LockedModel(model, threading.Lock())
    opened = open_for_viewing(trace.write(tmp_path / "lena.trace"))
    runs = [Run(opened, live=cli_view._live(shared, opened.trace))]
    with pytest.raises(SpecError, match="make it first"):
        cli_view._forks(shared, runs, Options(), tmp_path / "none")
    (tmp_path / "forks").mkdir()
    forks = cli_view._forks(shared, runs, Options(), tmp_path / "forks")
    forks.start(0, runs[0].live, trace, Change.from_json({"kind": "sink_token", "step": 5}))
    forks.save(finish(forks).run)
    assert (tmp_path / "forks" / "lena-fork1.trace").is_dir()


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {"kind": "delete", "step": 0},
        {"kind": "hide", "step": 0},
        {"kind": "hide", "step": 0, "position": "0"},
        {"kind": "hide", "step": 0, "position": -1},
        {"kind": "hide", "step": True, "position": 1},
        {"kind": "hide", "step": 0, "position": 10**9},
        {"kind": "hide", "step": 0, "position": 1, "path": "/etc/passwd"},
        {"kind": ["hide"], "step": 0, "position": 1},
    ],
)
def test_a_change_that_is_none_is_refused(fields):
    with pytest.raises(SpecError):
        Change.from_json(fields)


class Held:
    """A server whose runs can be forked."""

    def __init__(self, runs, forks):
        self.server = Server(runs, forks=forks)
        self.thread = threading.Thread(target=self.server.serve, daemon=True)
        self.thread.start()
        wait_until(lambda: listens(self.server.port), "the start of the server")

    def ask(self, path, method="POST", body=b"{}", token=None, **headers):
        given = self.server.token if token is None else token
        with closing(
            http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=GUARD)
        ) as wire:
            wire.request(method, f"/{given}/{path}", body=body, headers=headers)
            answer = wire.getresponse()
            return answer.status, json.loads(answer.read())

    @property
    def own(self):
        return {
            "Origin": f"http://127.0.0.1:{self.server.port}",
            "Content-Type": "application/json",
        }


@pytest.fixture
def held(shown):
    server = Held(*shown)
    yield server
    server.server.close()
    server.thread.join(timeout=GUARD)


HIDE = json.dumps({"kind": "hide", "step": 2, "position": 0}).encode()


def test_the_page_forks_and_saves(held, tmp_path):
    status, state = held.ask("data/0/fork", body=HIDE, **held.own)
    assert (status, state["state"]) == (202, "running")
    done = lambda: held.ask("data/fork.json", method="GET")[1]  # noqa: E731
    wait_until(lambda: done()["state"] == "done", "the end of the fork")
    assert done()["run"] == 2
    assert held.ask("data/2/header.json", method="GET")[1]["fork"] == 2
    assert held.ask("data/2/save", **held.own) == (200, {"name": "lena-fork1.trace"})
    assert (tmp_path / "lena-fork1.trace").is_dir()


REFUSED = {
    "by GET": ({"method": "GET"}, {}, 404),
    "by PUT": ({"method": "PUT"}, {}, 405),
    "without the token": ({"token": "x"}, {}, 403),
    "of another origin": ({}, {"Origin": "http://evil.example"}, 403),
    "of no origin": ({}, {"Origin": None}, 403),
    "of the null origin": ({}, {"Origin": "null"}, 403),
    "of another site": ({}, {"Sec-Fetch-Site": "cross-site"}, 403),
    "of another host": ({}, {"Host": "evil.example"}, 400),
    "as a form": ({}, {"Content-Type": "text/plain"}, 415),
    "no JSON": ({"body": b"{"}, {}, 400),
    "too long": ({"body": b" " * (LONGEST_BODY + 1)}, {}, 400),
    "of a run that is none": ({"path": "data/9/fork"}, {}, 404),
    "of a run without its model": ({"path": "data/1/fork"}, {}, 404),
    "unknown": ({"body": b'{"kind": "rm"}'}, {}, 400),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mutation_that_is_not_the_pages_own_is_refused(held, shown, name):
    request, headers, status = REFUSED[name]
    sent = {key: value for key, value in (held.own | headers).items() if value is not None}
    answer = held.ask(**({"path": "data/0/fork", "body": HIDE} | request), **sent)
    assert answer[0] == status
    assert answer[1]["error"]
    assert shown[1].state.state == "idle"
    assert len(shown[0]) == 2


def test_saving_is_guarded_likewise(held, tmp_path):
    assert held.ask("data/0/save", **held.own)[0] == 400
    assert held.ask("data/0/save", method="GET", body=None, **held.own)[0] == 404
    assert held.ask("data/0/save", **(held.own | {"Origin": "http://evil.example"}))[0] == 403
    assert [path.name for path in tmp_path.iterdir()] == ["lena.trace"]


def test_without_a_model_nothing_is_changed():
    server = Held([Run(open_for_viewing("nothing"))], None)
    try:
        assert server.ask("data/0/fork", body=HIDE, **server.own)[0] == 405
    finally:
        server.server.close()
        server.thread.join(timeout=GUARD)
