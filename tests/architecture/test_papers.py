"""The pages of the papers: filled by docs/papers.py, and every command in them is a real one."""

import ast
import importlib.util
import inspect
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer

from anchorwatch import studies
from anchorwatch.cli.app import app
from anchorwatch.errors import SpecError
from anchorwatch.studies.claim import Finding, Measured
from anchorwatch.studies.estimate import Estimate
from anchorwatch.studies.evidence import Evidence
from anchorwatch.studies.plan_study import Plan
from anchorwatch.studies.study_record import VERSION, Study
from anchorwatch.studies.verdict import JudgedClaim, verdicts

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {"floating": "floating.md", "sinks": "sinks.md", "sink_token": "sink-token.md"}
TEXTS = {name: (DOCS / name).read_text() for name in ("studies.md", *PAGES.values())}
KINDS = ("lead", "found")
LEAD = "<!-- lead -->\nNO LEAD\n<!-- /lead -->\n"


@pytest.fixture(scope="module")
def papers():
    spec = importlib.util.spec_from_file_location("papers", DOCS / "papers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def planted(claim, rng):
    """A finding far inside every region; its null and control are there where they are named."""
    found = {}
    for one in claim.criteria:
        low, high = one.region
        if np.isinf(low):
            low = high - 2
        centre = one.about if one.direction == "equal" else low + 1
        values = rng.normal(centre, 0.001 * (high - low if np.isfinite(high) else 1), 9)
        found[one.name] = Measured(Estimate.mean(values, claim.unit), 0.0, 0.5)
    return Finding(found)


def study(out, names=()):
    """A study of claims that all hold, but for those that cannot be run."""
    every, rng = studies.claims(names), np.random.default_rng(1)
    held = {one.id: planted(one, rng) for one in every if one.is_testable}
    said = verdicts([(one.criteria, held[one.id]) for one in every if one.is_testable])
    each = iter(said)
    judged = tuple(
        JudgedClaim(one, held[one.id], next(each))
        if one.is_testable
        else JudgedClaim(one, lacking=one.lacks)
        for one in every
    )
    about = {
        "models": {"mdm": "lab/toy-mdm", "arm": "lab/toy-arm"},
        "weights": {"mdm": "c0ffee", "arm": "decade"},
        "budget": studies.BUDGETS["quick"].as_dict(),
        "versions": {"anchorwatch": "0.1", "torch": "2.13"},
        "plan": {"minutes": 3.1},
    }
    made = Study(judged, about, Plan((), {}, ()), Evidence.of({}))  # nothing to draw from
    out.mkdir(parents=True)
    (out / "claims.json").write_text(json.dumps(made.as_dict()))
    return out


@pytest.fixture
def docs(tmp_path):
    """Pages of one sentence, to be filled."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in PAGES.values():
        (folder / name).write_text(
            f"Before.\n{LEAD}\n<!-- found -->\nAS IT WAS\n<!-- /found -->\n\nAfter.\n"
        )
    return folder


def read(docs):
    return {study: (docs / name).read_text() for study, name in PAGES.items()}


def rewritten(out, change):
    path = out / "claims.json"
    held = json.loads(path.read_text())
    change(held)
    path.write_text(json.dumps(held))


def rows(text):
    """Cells of the first table, by claim; a pipe that is escaped ends no cell."""
    table = text.split("<details>")[0]
    lines = [line for line in table.splitlines() if re.match(r"\| H\d+ \|", line)]
    cells = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]
    return {line[0]: line for line in cells}


def test_a_study_fills_every_page_and_a_second_call_changes_nothing(papers, docs, tmp_path):
    out = study(tmp_path / "out")
    papers.main([str(out), "--docs", str(docs)])
    once = read(docs)
    papers.main([str(out), "--docs", str(docs)])
    assert read(docs) == once
    for name, text in once.items():
        assert text.startswith("Before.\n<!-- lead -->\nTested on `lab/toy-mdm`, `lab/toy-arm`, ")
        assert "NO LEAD" not in text
        assert text.endswith("\n<!-- /found -->\n\nAfter.\n")
        assert "AS IT WAS" not in text
        assert (
            "`lab/toy-mdm` (mdm), `lab/toy-arm` (arm). Budget: quick (10 prompts, 32 items)" in text
        )
        found = rows(text)
        assert list(found) == [one.id.partition("/")[2] for one in studies.claims([name])]
        for one in studies.claims([name]):
            cells = found[one.id.partition("/")[2]]
            assert len(cells) == 7
            assert cells[1] == one.sentence
            assert cells[2].partition(",")[0] == one.origin
            assert cells[3] == ("supported" if one.is_testable else "not testable")
            assert cells[5] == (f"9 {one.unit}s" if one.is_testable else "")


def test_numbers_are_those_of_the_criterion_that_decides(papers, docs, tmp_path):
    out = study(tmp_path / "out", ["sinks"])
    papers.fill(docs, out)
    claim = next(
        one for one in json.loads((out / "claims.json").read_text())["claims"] if one.get("binding")
    )
    one = next(each for each in claim["criteria"] if each["criterion"] == claim["binding"])
    cell = rows(read(docs)["sinks"])[claim["id"].partition("/")[2]][4]
    assert cell.startswith(f"{one['effect']:.3g} [{one['low']:.3g}, {one['high']:.3g}]")
    result, needed = cell.split("; ")
    several = sum(each["decides"] for each in claim["criteria"]) > 1
    assert result.endswith(f"({claim['binding']})") == several
    assert needed == f"above {one['margin']:.3g}"


def test_what_a_study_did_not_run_is_left_as_it_is(papers, docs, tmp_path):
    papers.fill(docs, study(tmp_path / "out", ["sinks"]))
    found = read(docs)
    assert "AS IT WAS" in found["floating"] and "AS IT WAS" in found["sink_token"]
    assert "supported" in found["sinks"]


def test_the_digest_is_the_study_s(papers, docs, tmp_path):
    out = study(tmp_path / "out", ["sinks"])
    papers.fill(docs, out)
    said = json.loads((out / "claims.json").read_text())["digest"]
    assert f"manifest `{said}`" in read(docs)["sinks"]


def test_what_models_lack_is_in_the_first_paragraph_and_in_a_table(papers, docs, tmp_path):
    out = study(tmp_path / "out", ["sinks"])
    item = {"name": "a sink | in most heads", "value": 0.25, "minimum": 0.5, "holds": False}
    fine = item | {"name": "a trained model", "holds": True}

    def change(held):
        held["claims"][0]["preconditions"] = [item, fine]
        held["claims"][2]["preconditions"] = [item]
        held["claims"][3]["preconditions"] = [item]  # of a neighbouring paper

    rewritten(out, change)
    papers.fill(docs, out)
    text = read(docs)["sinks"]
    lead = text.partition("<!-- /lead -->")[0]
    assert r"these lack: a sink \| in most heads (0.25, at least 0.5 needed: H1, H3)." in lead
    assert "Sentences of the paper that were run (24): 24 supported." in lead
    assert " of the 36 claims were changed since they were first written" in lead
    assert r"| a sink \| in most heads | 0.25 | 0.5 | H1, H3, H4 |" in text
    assert "a trained model" not in text


def test_pages_without_a_study_say_in_their_first_paragraph_that_nothing_was_run(
    papers, docs, tmp_path
):
    papers.fill(docs, study(tmp_path / "out"))
    papers.fill(docs)
    for text in read(docs).values():
        assert "Tested on" not in text
        assert "<!-- lead -->\nNot run yet.\n<!-- /lead -->" in text


def test_a_page_without_a_place_for_the_first_paragraph_is_refused(papers, docs, tmp_path):
    page = docs / "sinks.md"
    page.write_text(page.read_text().replace(LEAD, ""))
    with pytest.raises(SpecError, match=r"sinks.md has no place .*: put <!-- lead --> and, below"):
        papers.fill(docs, study(tmp_path / "out"))


def test_a_pipe_a_tag_or_a_new_line_stays_in_its_cell(papers, docs, tmp_path):
    out = study(tmp_path / "out", ["sinks"])
    words = "a | b\n<!-- /found --> <b>c"
    rewritten(out, lambda held: held["claims"][2].update(sentence=words))
    papers.fill(docs, out)
    once = read(docs)["sinks"]
    assert rows(once)["H3"][1] == r"a \| b &lt;!-- /found --> &lt;b>c"
    papers.fill(docs, out)
    assert read(docs)["sinks"] == once


def test_an_absent_number_is_a_dash_and_says_why(papers, docs, tmp_path):
    out = study(tmp_path / "out", ["sinks"])
    gone = {"low": None, "high": None, "null": None, "missing": 2, "why": "no two prompts differ"}

    def change(held):
        claim = held["claims"][1]
        claim["criteria"][0] |= gone

    rewritten(out, change)
    papers.fill(docs, out)
    cells = rows(read(docs)["sinks"])["H2"]
    assert cells[4].endswith(", no interval: no two prompts differ; above 0.96")
    assert cells[5] == "9 prompts, 2 missing"


@pytest.mark.parametrize(
    "text", ["nothing", "<!-- found -->\n", "<!-- /found -->\n<!-- found -->\n", "x" * 9]
)
def test_a_page_without_a_place_is_refused_and_no_other_is_written(papers, docs, tmp_path, text):
    (docs / "sink-token.md").write_text(text)
    before = read(docs)
    with pytest.raises(SpecError, match=r"put <!-- found --> and, below it, <!-- /found --> where"):
        papers.fill(docs, study(tmp_path / "out"))
    assert read(docs) == before
    (docs / "sink-token.md").unlink()
    with pytest.raises(SystemExit, match=r"there is no page .*sink-token.md: write it"):
        papers.main(["--docs", str(docs)])


def test_a_folder_that_is_no_whole_study_is_refused(papers, docs, tmp_path):
    with pytest.raises(SpecError, match=r"claims.json: `anchorwatch study -o .*none` writes it"):
        papers.fill(docs, tmp_path / "none")
    out = study(tmp_path / "two", ["sinks/H2", "sinks/H3"])
    with pytest.raises(SpecError, match=r"2 of the 36 claims of sinks: run them together"):
        papers.fill(docs, out)
    rewritten(out, lambda held: held.update(version=0))
    with pytest.raises(
        SpecError, match=f"is not of version .* to {VERSION}: `anchorwatch study -o"
    ):
        papers.fill(docs, out)
    (out / "claims.json").write_text("{")
    with pytest.raises(SpecError, match="is no JSON"):
        papers.fill(docs, out)


def test_a_part_of_other_models_is_written_beside_and_leaves_the_rest(papers, docs, tmp_path):
    page = docs / "sinks.md"
    places = [f"<!-- {kind} smol -->\nOF SMOL\n<!-- /{kind} smol -->\n" for kind in KINDS]
    page.write_text("\n".join([page.read_text(), *places]))
    some = study(tmp_path / "some", ["sinks/H2", "sinks/H3"])
    papers.main([str(some), "--part", "smol", "--docs", str(docs)])
    both = page.read_text()
    first, _, part = both.partition("<!-- lead smol -->")
    assert "AS IT WAS" in first and "NO LEAD" in first and "OF SMOL" not in both
    assert part.startswith("\nTested on `lab/toy-mdm`, `lab/toy-arm`, budget quick.")
    assert list(rows(part)) == ["H2", "H3"]
    assert "Not run on these models: H1, H4, H5," in part
    assert "What was changed" not in part  # the log is in the first part
    papers.fill(docs, study(tmp_path / "whole", ["sinks"]))
    assert page.read_text().partition("<!-- lead smol -->")[2] == part
    assert "AS IT WAS" not in page.read_text()


def test_a_part_needs_a_place_and_a_study(papers, docs, tmp_path):
    some = study(tmp_path / "some", ["sinks/H2"])
    with pytest.raises(SpecError, match="put <!-- found smol --> and, below it, <!-- /found smol"):
        papers.fill(docs, some, part="smol")
    with pytest.raises(SystemExit, match=r"takes a study: python docs/papers.py FOLDER"):
        papers.main(["--part", "smol", "--docs", str(docs)])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_the_claims_of_the_catalogue(name, papers):
    found = rows(TEXTS[PAGES[name]])
    every = studies.claims([name])
    assert list(found) == [one.id.partition("/")[2] for one in every], "run `make papers`"
    said = {one.id: papers._cell(one.sentence) for one in every}
    assert [cells[1] for cells in found.values()] == list(said.values()), "run `make papers`"


@pytest.mark.parametrize("name", PAGES)
def test_the_tour_names_every_claim(name):
    """A range such as "H5 to H9" names all in it."""
    text = TEXTS[PAGES[name]].partition("<!-- found -->")[0]
    named = {int(one) for one in re.findall(r"\bH(\d+)\b", text)}
    for low, high in re.findall(r"\bH(\d+) to H(\d+)\b", text):
        named |= set(range(int(low), int(high) + 1))
    every = {one.number for one in studies.claims([name])}
    lacking = {one.number for one in studies.claims([name]) if not one.is_testable}
    assert every - lacking <= named <= every


def commands():
    """Lines of console blocks, and what stands in backticks and begins like a command."""
    for name, text in TEXTS.items():
        blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
        lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
        lines += re.findall(r"`((?:anchorwatch|make|python) [^`]+)`", text)
        yield from ((name, line.partition("  #")[0].partition(" # ")[0]) for line in lines)


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_every_command_is_a_real_one(page, line, papers, tmp_path):
    program, *words = shlex.split(line)
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words and set(words) <= set(targets)
    elif program == "python":
        assert words[0] in ("docs/papers.py", "docs/smol_study.py")
        assert (ROOT / words[0]).is_file()
        parts = [["--part", part] for part in papers.PARTS[1:]]
        assert len(words) == 2 or (words[0] == "docs/papers.py" and words[2:] in parts)
    else:
        assert program == "anchorwatch"
        command = typer.main.get_command(app)
        parsed = command.commands[words[0]].make_context(words[0], list(words[1:]))
        if words[0] == "study":
            assert studies.claims(parsed.params["names"] or [])
            assert parsed.params["budget"] in studies.BUDGETS


def test_there_are_commands_to_check():
    assert len([line for page, line in commands() if page == "studies.md"]) >= 6


def test_python_in_the_pages_calls_what_there_is():
    first, *others = re.findall(r"```python\n(.*?)```", TEXTS["studies.md"], re.DOTALL)
    held = {}
    exec(compile(first, "studies.md", "exec"), held)
    assert held["claim"].id == "sinks/H3"
    inline = re.findall(r"`(aw\.studies\.[^`]*\))`", TEXTS["studies.md"])
    calls = 0
    for code in (*others, *inline):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("aw.studies."):
                called = getattr(studies, node.func.attr)
                words = {one.arg: ast.literal_eval(one.value) for one in node.keywords}
                inspect.signature(called).bind(*map(ast.literal_eval, node.args), **words)
                calls += 1
    assert calls >= 3
    for name in ("claims", "draw", "__getitem__"):
        assert hasattr(Study, name)


def test_studies_says_the_budgets_and_what_always_lacks():
    text = TEXTS["studies.md"]
    for one in studies.BUDGETS.values():
        text_runs = f"{one.text_length}, blocks of {one.text_block}"
        sizes = (one.prompts, one.length, one.steps, text_runs, one.items, one.rows)
        assert f"| `{one.name}` | {' | '.join(map(str, sizes))} |" in text
    lacking = [one.id for one in studies.claims() if not one.is_testable]
    assert f"({', '.join(lacking)})" in text
    for name, count in studies.STUDIES.items():
        assert re.search(rf"\| `{name}` \|.*\| {count} \|", text)


def test_links_of_the_pages_lead_somewhere():
    for name, text in TEXTS.items():
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (DOCS / target).exists(), f"{name}: {target}"


def test_alike_units_on_the_wrong_side_say_how_many_would_refute(papers):
    row = {"effect": 0.0, "low": -0.3, "high": 0.3, "null": None, "control": None, "why": ""}
    row |= {"detectable": None, "units_needed": None, "units_refuting": 72}
    assert papers._result(row).endswith("; all alike; 72 such units refute the claim")


def test_a_verdict_that_ten_alike_leave_open_says_how_many_would_decide(papers, docs, tmp_path):
    out = study(tmp_path / "out", ["sinks"])

    def change(held):
        first = held["claims"][0]
        first["verdict"] = "undecided"
        for criterion in first["criteria"]:
            criterion["units_needed"] = 20

    rewritten(out, change)
    papers.fill(docs, out)
    assert "; all alike, 20 such prompts would decide |" in read(docs)["sinks"]
