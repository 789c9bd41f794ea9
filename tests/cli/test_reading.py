"""Measuring and plotting as a person types it."""

import io
import json
from pathlib import Path

import pandas as pd
import pytest

import anchorwatch as aw
from command import one_line_of, type_in

ASK = "the ship is at the shore. Lena was born in Oslo. where was Lena born?"


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A trace with regions, and one of an autoregressive model."""
    folder = tmp_path_factory.mktemp("reading")
    probes = [*aw.probes.DEFAULT, aw.probes.region_flow()]
    spans = {"doc1": (0, 25), "gold": (26, 48), "question": (49, len(ASK))}
    mdm = aw.run(
        aw.load("tiny/llada"),
        ASK,
        aw.decoding.LowConfidence(length=8, steps=8),
        regions=spans,
        probes=probes,
    )
    arm = aw.run(aw.load("tiny/arm"), ASK, aw.decoding.LeftToRight(length=8))
    return mdm.write(folder / "mdm.trace"), arm.write(folder / "arm.trace")


def test_measure_prints_csv_with_null_and_interval(two):
    words = ("measure", "sinks", *two, "--rule", "rulli:2", "--by", "layer,head")
    done = type_in(*words, fresh=True)
    assert done.returncode == 0 and not done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("model,layer,head,quantity,value,null,lift,n,missing,low,high,inter")
    assert len(lines) == 1 + 2 * 3 * 4 * 4


def test_measure_writes_files_that_whence_reads(two, tmp_path):
    for kind in ("json", "parquet"):
        out = tmp_path / f"t.{kind}"
        assert type_in("measure", "jumps", two[0], "-o", out).returncode == 0
        made = json.loads(type_in("whence", out, fresh=True).stdout)
        assert made["about"]["metric"] == "jumps"
        assert made["traces"][0]["model"] == "tiny/llada"
    held = json.loads(type_in("measure", "sink-rate", two[0], "--json").stdout)
    assert {row["quantity"] for row in held["rows"]} == {"anywhere", "first"}
    assert held["about"]["eps"] == 0.3


def test_every_option_of_a_metric_can_be_set(two):
    done = type_in(
        "measure", "gold-lift", two[0], "--set", "gold=gold", "--set", "distractors=doc1"
    )
    assert done.returncode == 0, done.stderr
    done = type_in(
        "measure", "set_jaccard", two[0], "--set", "lags=1,3", "--set", f"frozen={two[0]}"
    )
    held = pd.read_csv(io.StringIO(done.stdout))
    assert sorted(held.lag) == [1, 3] and (held.frozen == held.value).all()
    done = type_in("measure", "agreement", two[0], "--set", "rules=rulli:2,topk:1")
    assert "rulli:2:sum ~ topk:1" in done.stdout


def test_options_of_every_kind_are_read(two):
    sets = type_in("measure", "absorption", two[0], "--set", "sets=first,top2,rulli:2")
    assert {"first", "top2", "rulli:2:sum"} <= set(pd.read_csv(io.StringIO(sets.stdout)).quantity)
    for metric, setting in (("retrieval_heads", "ignore=1,2"), ("gold_lift", "gold=gold")):
        done = type_in("measure", metric, two[0], two[0], "--set", setting)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["measure", "sinks", "--rule", "gu", "--set", "rule=topk"], "rule is given twice, gu and"),
        (["measure", "sinks", "--set", "=3"], "--set =3 is not name=value"),
        (["measure", "sinks", "--by", "layer,layer"], "names layer twice"),
        (["measure", "head_types", "--set", "limits=3"], "in Python, give limits="),
        (["measure", "split_index", "--set", "groups=all"], "is not a pair"),
        (["plot", "map-pair", "-o", "f.pdf"], "map-pair needs step, layer, head"),
        (["plot", "sink-path", "--set", "heads=0", "-o", "f.pdf"], "'0' is not layer:head"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_one_line(two, words, says):
    command, name, *rest = words
    done = type_in(command, name, two[0], *rest)
    assert done.returncode == 2
    assert says in one_line_of(done)


def test_a_wrong_place_is_refused_before_anything_is_read(two):
    for command in ("measure", "plot"):
        done = type_in(command, "sinks", "/no/such/trace", "-o", "x.txt")
        assert done.returncode == 2 and "cannot be saved as 'x.txt'" in one_line_of(done)
    before = sorted(two[0].rglob("*"))
    done = type_in("measure", "all", two[0], "-o", two[0])
    assert done.returncode == 2 and "is a trace, and a file in it would spoil" in one_line_of(done)
    assert sorted(two[0].rglob("*")) == before


def test_all_metrics_go_into_a_folder(two, tmp_path):
    done = type_in("measure", "all", *two, "-o", tmp_path / "tables")
    assert done.returncode == 0, done.stderr
    names = {path.stem for path in (tmp_path / "tables").glob("*.csv")}
    assert {"sinks", "jumps", "enrichment", "qk_split"} <= names


def test_lists_say_what_there_is():
    for command, name in (("measure", "epsilon_curve"), ("plot", "sink-map")):
        lines = type_in(command, "list").stdout.splitlines()
        assert any(line.startswith(name) and len(line) > 40 for line in lines)
        assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_plot_draws_a_file_that_remembers_its_traces(two, tmp_path, kind):
    out = tmp_path / f"a.{kind}"
    done = type_in("plot", "absorption", *two, "-o", out, fresh=True)
    assert done.stdout.strip() == str(out), done.stderr
    made = json.loads(type_in("whence", out, fresh=True).stdout)
    assert [one["model"] for one in made["traces"]] == ["tiny/llada", "tiny/arm"]


def test_plot_takes_the_options_of_figure_and_metric(two, tmp_path):
    out = tmp_path / "m.png"
    words = ("plot", "sink-map", two[0], "--layer", 1, "--head", 2, "--rule", "rulli:2", "-o", out)
    assert type_in(*words).returncode == 0
    made = json.loads(type_in("whence", out).stdout)
    assert made["settings"]["layer"] == 1
    assert type_in("plot", "flow-bands", two[0], "-o", tmp_path / "f.svg").returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["measure", "sink", "X"], 2, "no metric is called 'sink': expected all or one of"),
        (["measure", "sinks"], 2, "name at least one trace"),
        (["measure", "sinks", "X", "--rule", "rully"], 2, "rule: no rule is called 'rully'"),
        (["measure", "sinks", "X", "--set", "gold"], 2, "--set gold is not name=value"),
        (["measure", "sinks", "X", "--set", "gold=a"], 2, "no option gold: it takes rule, group"),
        (["measure", "epsilon_curve", "X", "--set", "eps=a"], 2, "eps: 'a' cannot be read"),
        (["measure", "sinks", "X", "--by", "key"], 2, "count has no key: it can be split by"),
        (["measure", "all", "X"], 2, "say which folder, -o tables"),
        (["measure", "all", "X", "--rule", "gu", "-o", "y"], 2, "leave rule out"),
        (["measure", "mixing", "X"], 1, "aw.replay(model, trace, probes=[aw.probes.mixing()])"),
        (["measure", "sinks", "X", "-o", "t.xls"], 2, "the name ends in .csv, .json, .parquet"),
        (["measure", "sinks", "nowhere.trace"], 1, "there is no trace at nowhere.trace"),
        (["plot", "sink_map", "X", "-o", "y.pdf"], 2, "no figure is called 'sink_map': expected"),
        (["plot", "sink-map", "X"], 2, "say where to: -o sinks.pdf"),
        (["plot", "sink-map", "X", "X", "-o", "y.pdf"], 2, "is of one trace: 2 were given"),
        (["plot", "sink-map", "X", "-o", "y.gif"], 2, "the name ends in .pdf, .png, .svg"),
        (["plot", "sink-map", "X", "--step", "1", "-o", "y.pdf"], 2, "no option step: it takes"),
        (["run", "tiny/llada", "the", "--region", "gold"], 2, "--region gold is not name=text"),
    ],
)
def test_mistakes_say_what_would_have_worked(two, words, code, says):
    done = type_in(*[str(two[0]) if word == "X" else word for word in words])
    assert done.returncode == code, done.stderr
    assert says in one_line_of(done)
    assert not Path("y.pdf").exists()


def test_regions_are_named_on_the_command_line(tmp_path):
    out = tmp_path / "r.trace"
    done = type_in(
        *("run", "tiny/llada", ASK, "--length", 4, "--steps", 4, "-o", out),
        *("--region", "gold=Lena was born in Oslo.", "--probes", "default,region_flow"),
    )
    assert done.returncode == 0, done.stderr
    assert aw.read(out).manifest["regions"] == ["gold", "answer"]


def test_a_replay_brings_what_a_figure_lacks(two, tmp_path):
    picture = tmp_path / "pair.svg"
    words = ("plot", "map-pair", "--step", 3, "--layer", 1, "--head", 2, "-o", picture)
    says = one_line_of(type_in(*words, two[0]))
    assert "anchorwatch replay TRACE --probes default,pattern:layers=1,heads=2,steps=3+4" in says
    more = tmp_path / "more.trace"
    probes = "default,pattern:layers=1,heads=2,steps=3+4,norms:keys=true,qk_geometry:keys=true"
    probes += ",qk_maps:layers=1,heads=2,steps=3"
    done = type_in("replay", two[0], "--probes", probes, "-o", more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == aw.read(two[0]).text.strip()
    assert type_in(*words, more).returncode == 0
    for figure in ("qk-triptych", "qk-maps"):
        words = ("plot", figure, more, "--step", 3, "--layer", 1, "--head", 2)
        done = type_in(*words, "-o", tmp_path / f"{figure}.svg")
        assert done.returncode == 0, done.stderr
    done = type_in("plot", "value-norms", more, "-o", tmp_path / "norms.svg")
    assert done.returncode == 0, done.stderr
    assert aw.read(more).digest() == aw.read(two[0]).digest()


def test_a_replay_says_what_is_wrong_before_it_loads(two, tmp_path):
    out = tmp_path / "again.trace"
    assert "norms has no kys" in one_line_of(
        type_in("replay", two[0], "--probes", "norms:kys=true", "-o", out)
    )
    assert "--steps x is not numbers: say --steps 0+8 or 0-7" in one_line_of(
        type_in("replay", two[0], "--steps", "x", "-o", out)
    )
    assert "5-2 is reversed: say 2-5" in one_line_of(
        type_in("replay", two[0], "--steps", "5-2", "-o", out)
    )
    assert "is not the model that made this trace" in one_line_of(
        type_in("replay", two[0], "--model", "tiny/dream", "-o", out)
    )
    assert not out.exists()
