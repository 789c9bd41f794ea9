"""Nothing is written into a trace, an unfinished run or a checkpoint; paths are said as they are."""

import pytest

import anchorwatch as aw
from anchorwatch.cli import output
from anchorwatch.cli.app import app
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.trace import atomic_io
from anchorwatch.trace.store import Partial, find_damage
from command import type_in
from strategies import load
from synthetic_traces import planted, uniform


@pytest.fixture
def trace(tmp_path):
    return planted(uniform(2, 1, 1, 6), prompt=4).write(tmp_path / "a.trace")


SWEEP = "sweep.toml"
SPEC = 'models = ["tiny/llada"]\nprompts = ["the anchor"]\n[decodings]\nd = "low-confidence:length=2"\n'


def written_by(trace, at):
    """Every command that writes, made to write at a place."""
    ask = ["tiny/llada", "the anchor", "--length", "2"]
    task = ["--task", "synthetic/one-hop", "--contexts", "closed", "--limit", "1", "--length", "2"]
    return {
        "run": ["run", *ask, "-o", at / "b.trace"],
        "replay": ["replay", trace, "--model", "tiny/llada", "-o", at / "b.trace"],
        "paper": ["paper", "sinks", "--figure", "1", "--model", "tiny/llada", "-o", at / "paper"],
        "export": ["export", trace, "-o", at / "page.html"],
        "export a folder": ["export", trace, "-o", at / "site"],
        "eval": ["eval", "tiny/llada", *task, "-o", at / "results"],
        "eval here": ["eval", "tiny/llada", *task, "-o", at],
        "study": ["study", "sinks/H3", "--model", "tiny/llada", "-o", at / "study"],
        "measure": ["measure", "sinks", trace, "-o", at / "sinks.csv"],
        "measure all": ["measure", "all", trace, "-o", at / "tables"],
        "plot": ["plot", "sinks", trace, "-o", at / "sinks.pdf"],
        "sweep": ["sweep", SWEEP, "-o", at / "runs"],
    }


@pytest.mark.parametrize("name", list(written_by(None, atomic_io.expand_path("."))))
@pytest.mark.parametrize("inner", ["", "received"])
def test_no_command_writes_into_a_trace(trace, name, inner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / SWEEP).write_text(SPEC)
    done = type_in(*written_by(trace, trace / inner)[name])
    assert done.returncode == 2, done.stderr
    assert "is a trace, and a file in it would spoil it: choose a folder outside" in done.stderr
    assert find_damage(trace) == []


def test_a_training_run_is_not_put_into_a_trace(trace):
    from anchorwatch.training.checkpoints import refuse_foreign

    for at in (trace, trace / "run"):
        with pytest.raises(SpecError, match="is a trace, and a file in it would spoil it"):
            refuse_foreign(at, {})


def test_a_link_into_a_trace_is_seen_through(trace, tmp_path):
    (tmp_path / "link").symlink_to(trace / "received")
    for at in (tmp_path / "link", tmp_path / "link" / "x.csv"):
        with pytest.raises(SpecError, match=r"a\.trace.* is a trace"):
            atomic_io.refuse_inside_trace(at)


def test_unfinished_runs_and_checkpoints_are_spared_too(tmp_path):
    partial = Partial.create(tmp_path / "b.trace", {}, {})
    with pytest.raises(SpecError, match=r"b\.trace\.partial is an unfinished run, and a file in"):
        atomic_io.replace_file(partial.path / "x.csv", b"x")
    checkpoint = tmp_path / "run" / "checkpoints" / "update-00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "COMMIT.json").write_text("{}")
    with (
        pytest.raises(SpecError, match="is a checkpoint, and a file in it would spoil it"),
        atomic_io.stage_folder(checkpoint / "site"),
    ):
        pass


@pytest.mark.parametrize("out", ["y.trace", "y.trace.partial"])
def test_a_run_says_where_its_trace_is(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    done = type_in("run", "tiny/llada", "the anchor", "--length", "2", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "wrote     y.trace\n" in done.stderr
    assert aw.read("y.trace").num_steps == 2
    again = type_in("run", "tiny/llada", "the anchor", "--length", "2", "-o", out)
    assert "y.trace exists already" in again.stderr and ".partial" not in again.stderr


def test_a_resumed_run_says_where_its_trace_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    real = Partial.finish
    with monkeypatch.context() as patch:
        patch.setattr(Partial, "finish", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            aw.run(load("tiny/llada"), "the", aw.decoding.LowConfidence(8, 8), out="y.trace")
    assert Partial.finish is real
    refused = type_in("run", "tiny/llada", "the", "--length", "2", "-o", "y.trace")
    assert "y.trace.partial is an unfinished run: continue it" in refused.stderr
    done = type_in("resume", "tiny/llada", "y.trace.partial")
    assert "wrote     y.trace\n" in done.stderr, done.stderr


def test_a_name_that_is_only_an_ending_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"\.partial is no name: give the trace one"):
        Partial.create(tmp_path / ".partial", {}, {})
    with pytest.raises(TraceError, match="is no name"):
        output.refuse_trace_path(tmp_path / ".partial")


def test_a_manifest_is_copied_without_being_spelled(monkeypatch):
    """A vocabulary of 200,000 tokens took seconds at each look, and a metric looks often."""
    trace = planted(uniform(2, 1, 1, 6), prompt=4)
    trace._manifest["tokens"] |= {str(at): "x" for at in range(1000, 201_000)}
    calls = []
    monkeypatch.setattr(
        "anchorwatch.trace.trace.json.dumps", lambda *given, **_: calls.append(given)
    )
    first = trace.manifest
    assert len(first["tokens"]) > 200_000 and not calls
    first["tokens"]["1000"] = first["model"]["source"] = "another"
    assert (
        trace.manifest["tokens"]["1000"] == "x" and trace.manifest["model"]["source"] != "another"
    )


def test_every_command_that_writes_is_listed():
    """Those that have -o, but for convert, effect and train, whose own tests are elsewhere."""
    import typer.main

    commands = typer.main.get_command(app).commands
    writes = {name for name, one in commands.items() if any("-o" in p.opts for p in one.params)}
    listed = {name.split()[0] for name in written_by(None, atomic_io.expand_path("."))}
    assert writes == listed | {"effect", "train"}
