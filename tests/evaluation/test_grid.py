"""The grid: answers depend on nothing but their item, and every one survives a kill."""

import json
import signal
import subprocess
import sys
from contextlib import nullcontext
from itertools import combinations, islice
from unittest import mock

import pytest

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchWarning, ModelError, SpecError, TraceError
from anchorwatch.evaluation import grid, questions
from anchorwatch.evaluation.contexts import context
from anchorwatch.evaluation.grid import evaluate
from anchorwatch.evaluation.prompt_templates import template
from anchorwatch.evaluation.results import Cell, digest_of, read_results
from anchorwatch.evaluation.synthetic import guesser_chance
from anchorwatch.evaluation.tasks import item_key, task
from question_files import lines
from strategies import load

CONTEXTS = ("closed", "gold", "gold+1")
SHORT = {
    "mdm": aw.decoding.LowConfidence(length=8, steps=4),
    "arm": aw.decoding.LeftToRight(length=8),
}
EDITS = {"none": [], "sinks": [aw.edits.hide_sinks(1)], "random": [aw.edits.hide_random(1)]}


def models():
    return [load("tiny/llada"), load("tiny/arm")]


@pytest.fixture(scope="module")
def asked():
    return evaluate(
        models(), "synthetic/one-hop", contexts=CONTEXTS, decoding=SHORT, edits=EDITS, limit=5
    )


def written_to(path, count, order=1):
    made = list(islice(task("synthetic/one-hop"), count))[::order]
    rows = [
        {"question": item.question, "answers": list(item.answers), "id": str(item.metadata["index"]),
         "passages": [{"text": p.text, "gold": p.gold, "kind": p.kind} for p in item.passages if p.gold or len(p.text) < 70]}
        for item in made
    ]  # fmt: skip
    return lines(path, rows)


def test_a_row_for_every_item_of_every_cell(asked):
    rows = asked.rows
    assert (
        len(rows) == 2 * 3 * 3 * 5
        and not rows.duplicated(["model", "context", "edit", "item"]).any()
    )
    assert set(rows.kind) == {"mdm", "arm"} and set(rows.edit) == set(EDITS)
    assert asked.num_unfit == 0 and (rows.passages == rows.context.map(
        {"closed": 0, "gold": 1, "gold+1": 2})).all()  # fmt: skip
    assert rows.exact_match.isin([0.0, 1.0]).all() and rows.token_f1.between(0, 1).all()
    assert rows.misled.isna().all(), "no counterfactual passage was shown"
    assert len(asked.manifests) == 18
    assert repr(asked) == "Results(18 cells of 5 items, 0 unfit)"


def test_made_items_say_what_a_guesser_would_score(asked):
    made = {item_key(item): item for item in islice(task("synthetic/one-hop"), 5)}
    for row in asked.rows.itertuples():
        item = context(row.context).apply(made[row.item], (), 0)
        assert row.guesser == guesser_chance(item)
    assert (asked.rows[asked.rows.context == "closed"].guesser < 0.01).all()


def test_items_of_a_file_have_no_guesser(tmp_path):
    path, out = written_to(tmp_path / "questions.jsonl", 2), tmp_path / "out"
    asked = evaluate(load("tiny/arm"), path, contexts="closed,gold", decoding=SHORT, out=out)
    assert asked.rows.guesser.isna().all()
    assert read_results(out).rows.guesser.isna().all(), "absent on disk too"


def test_a_row_says_what_a_run_of_its_own_says(asked):
    """The slow twin: each item by `aw.run`, alone, its prompt put together by the item itself."""
    from anchorwatch.evaluation.synthetic import Draw

    found = asked.rows[(asked.rows.context == "gold+1")]
    items = {key: item for key, item in _keyed(5)}
    for row in found.itertuples():
        model = load(row.model)
        shown = context("gold+1").apply(items[row.item])
        trace = aw.run(
            model, shown.prompt(), SHORT[row.kind], probes=(), edits=EDITS[row.edit],
            seed=Draw("run", 0, row.item).word() >> 1,
        )  # fmt: skip
        ends = [i for i, token in enumerate(trace.canvas[-1][trace.answer]) if token in model.specials.end_ids]  # fmt: skip
        ids = trace.canvas[-1][trace.answer][: ends[0] if ends else None]
        said = model.decode([int(i) for i in ids if i not in (-1, model.specials.mask_id)])
        if row.narrow == 0:
            assert row.prediction == said.lstrip().split("\n")[0].strip()
            assert row.run == trace.digest()[:12]


def _keyed(count):

    return [(item_key(item), item) for item in islice(task("synthetic/one-hop"), count)]


def _same(one, other):
    keys = ["model", "context", "edit", "item"]
    one, other = (frame.set_index(keys).sort_index() for frame in (one.rows, other.rows))
    assert one.index.equals(other.index)
    decided = (one.narrow == 0) & (other.narrow == 0)
    assert decided.mean() > 0.9, "else the test says nothing"
    assert (one.unfit == "").all()
    for name in ("prediction", "written", "run", "exact_match", "token_f1"):
        assert (one[name][decided] == other[name][decided]).all(), name


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_answers_do_not_depend_on_the_batch(asked, batch):
    again = evaluate(
        models(), "synthetic/one-hop", contexts=CONTEXTS, decoding=SHORT, edits=EDITS, limit=5,
        batch=batch,
    )  # fmt: skip
    _same(asked, again)


def test_nor_on_the_order_of_items_even_where_chance_decides(tmp_path):
    drawn = {"mdm": aw.decoding.LowConfidence(length=6, steps=3, temperature=0.8),
             "arm": aw.decoding.LeftToRight(length=6, temperature=0.8)}  # fmt: skip
    found = [
        evaluate(
            models(), written_to(tmp_path / f"{order}.jsonl", 5, order),
            contexts="gold,gold+1,gold+1hard~typos20", decoding=drawn, batch=batch, seed=3,
            edits={"random": [aw.edits.hide_random(1)]},
        )
        for order, batch in ((1, 2), (-1, 3))
    ]  # fmt: skip
    _same(*found)
    other = evaluate(
        models(), written_to(tmp_path / "again.jsonl", 5), contexts="gold", decoding=drawn, seed=4
    )
    one = found[0].rows[found[0].rows.context == "gold"].written
    assert (one.to_numpy() != other.rows.written.to_numpy()).any(), "another seed says other things"


def test_who_always_says_oslo_is_right_where_oslo_is(tmp_path):
    """A planted truth for both families: logits, decoding, reading and scoring in one line."""
    model = type(models()[0])
    (oslo,) = models()[0].encode("Oslo")
    logits, extend = model.logits, model.extend

    def louder(*given, **named):
        found = logits(*given, **named)
        found[..., oslo] += 1e4
        return found

    def further(*given, **named):
        found, cache = extend(*given, **named)
        found[..., oslo] += 1e4
        return found, cache

    rows = [{"question": f"Where is ship {n}?", "answers": ["Oslo", "Kristiania"] if n % 4 else ["Bergen"],
             "context": "It is in Oslo."} for n in range(8)]  # fmt: skip
    with mock.patch.object(model, "logits", louder), mock.patch.object(model, "extend", further):
        found = evaluate(
            models(), lines(tmp_path / "t.jsonl", rows), contexts="closed,gold", decoding=SHORT
        )
    assert set(found.rows.prediction) == {" ".join(["Oslo"] * 8)}
    for _, part in found.rows.groupby(["model", "context"]):
        assert part.containment.mean() == 0.75 and part.exact_match.mean() == 0
        assert part.token_f1.mean() == pytest.approx(0.75 * 2 / 9)
        assert part.rouge1_recall.mean() == 0.75


def test_what_was_asked_is_not_asked_again(tmp_path):
    options = {"contexts": "closed,gold", "decoding": SHORT, "out": tmp_path / "out"}
    first = evaluate(models(), "synthetic/one-hop", limit=3, **options)
    with mock.patch.object(questions, "run_many", side_effect=AssertionError("asked again")):
        again = evaluate(models(), "synthetic/one-hop", limit=3, batch=1, **options)
        fewer = evaluate(models()[:1], "synthetic/one-hop", limit=2, **options)
    assert first.rows.equals(again.rows)
    assert len(fewer.rows) == 2 * 2
    assert read_results(tmp_path / "out").rows.equals(first.rows)
    more = evaluate(models(), "synthetic/one-hop", limit=4, **options)
    assert len(more.rows) == 4 * 4
    with mock.patch.object(questions, "run_many", side_effect=AssertionError("asked")):
        for changed in ({"template": "floating-rules"}, {"seed": 1}, {"edits": {"n": [aw.edits.no_op()]}},
                        {"decoding": aw.decoding.LeftToRight(length=9)}):  # fmt: skip
            with pytest.raises(AssertionError, match="asked"):
                evaluate(models()[1:], "synthetic/one-hop", limit=3, **options | changed)


@pytest.fixture
def folder(tmp_path):
    """tiny/arm as a folder whose files can be changed."""
    model = load("tiny/arm")
    model.network.save_pretrained(tmp_path / "arm")
    model.tokenizer.save_pretrained(tmp_path / "arm")
    return tmp_path / "arm"


def _in_config(folder, change):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}},
        {"rms_norm_eps": 0.1},
        {"max_position_embeddings": 400},
        {"bos_token_id": 7},
        {"chat_template": "{{ messages[0].content }} ahoy"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_same_weights_with_other_settings_are_another_model(folder, tmp_path, change):
    chat = template("plain", chat=True)
    options = {"contexts": "closed", "decoding": SHORT, "limit": 1, "template": chat}
    first = evaluate(str(folder), "synthetic/one-hop", out=tmp_path / "out", **options)
    with mock.patch.object(questions, "run_many", side_effect=AssertionError("asked again")):
        moved = folder.rename(tmp_path / "moved")
        _in_config(moved, {"_name_or_path": "x", "transformers_version": "1", "use_cache": False})
        evaluate(str(moved), "synthetic/one-hop", out=tmp_path / "out", **options)
    folder = moved.rename(folder)
    if "chat_template" in change:
        (folder / "chat_template.jinja").write_text(change["chat_template"])
    else:
        _in_config(folder, change)
    second = evaluate(str(folder), "synthetic/one-hop", out=tmp_path / "out", **options)
    truth = evaluate(str(folder), "synthetic/one-hop", **options)
    assert second.rows.equals(truth.rows)
    assert not set(first.manifests) & set(second.manifests)
    assert read_results(tmp_path / "out").rows.model.nunique() == 2, "both are there, by two names"


def test_another_file_gives_other_distractors(tmp_path):
    """A cell whose distractors come from the file is asked again when the file is another."""
    rows = [{"question": f"Where is ship {n}?", "answers": ["Oslo"], "context": f"Ship {n} is in Oslo."}
            for n in range(4)]  # fmt: skip
    others = [*rows[:2], *({**row, "context": "Another text."} for row in rows[2:])]
    options = {"decoding": SHORT, "out": tmp_path / "out", "limit": 2}
    for contexts, again in (("gold", False), ("gold+1", True)):
        path = lines(tmp_path / "t.jsonl", rows)
        evaluate(models()[1:], path, contexts=contexts, **options)
        lines(path, others)
        asked = pytest.raises(AssertionError, match="asked") if again else nullcontext()
        with mock.patch.object(questions, "run_many", side_effect=AssertionError("asked")), asked:
            evaluate(models()[1:], path, contexts=contexts, **options)


def _ships(path, first):
    rows = [{"id": str(n), "question": f"Where is ship {n}?", "answers": [first if n == 0 else "Oslo"],
             "context": f"Ship {n} is in Oslo."} for n in range(4)]  # fmt: skip
    return lines(path, rows)


def test_of_a_changed_file_the_last_version_is_read(tmp_path):
    """Corrected, an item is another: its old answers stay on disk and out of the results."""
    path, out = tmp_path / "t.jsonl", tmp_path / "out"
    options = {"decoding": SHORT, "out": out}
    first = evaluate(models()[1:], _ships(path, "Wrong"), contexts="closed,gold", **options)
    assert read_results(out).rows.equals(first.rows)
    second = evaluate(models()[1:], _ships(path, "Right"), contexts="closed,gold", **options)
    with pytest.warns(AnchorwatchWarning, match="2 answers at .* are to an earlier version of the"):
        assert read_results(out).rows.equals(second.rows)
    assert (
        evaluate(models()[1:], path, contexts="gold", limit=2, **options).rows.item.nunique() == 2
    )
    with pytest.warns(AnchorwatchWarning, match="2 answers"):
        assert read_results(out).rows.equals(second.rows), (
            "fewer of the same file are no other file"
        )
    third = evaluate(models()[1:], _ships(path, "Wrong"), contexts="gold", **options)
    with pytest.warns(AnchorwatchWarning, match="6 answers at .* ask again in all contexts"):
        assert read_results(out).rows.equals(third.rows), "nothing is paired with another version"
        (held,) = read_results(out, "t.jsonl").manifests.values()
    assert held["context"] == "gold"


def test_edits_stand_in_the_order_in_which_they_are_given(tmp_path):
    """So the sign of a comparison does not depend on names."""
    hidden, random = [aw.edits.hide_keys([0])], [aw.edits.hide_random(1)]
    options = {"contexts": "closed", "decoding": SHORT, "limit": 1, "out": tmp_path}
    for names in (["none", "z", "a"], ["none", "a", "z"], ["none", "none of it", "Z"]):
        given = {names[1]: hidden, names[0]: [], names[2]: random}
        found = evaluate(models()[1:], "synthetic/one-hop", edits=given, **options)
        assert list(found.rows.edit) == names
        assert read_results(tmp_path).rows.equals(found.rows), "the last names are on disk"
        table = aw.evaluation.tables.edits_compared(found)
        assert list(zip(table.a, table.b, strict=True)) == list(combinations(names, 2))


KILLED = """
import os, signal, sys, torch
torch.set_num_threads(1)
import anchorwatch as aw
from anchorwatch.evaluation import questions
from anchorwatch.evaluation.grid import evaluate
batches, run_many = iter([True, True, False]), questions.run_many

def dying(*given, **named):
    if not next(batches):
        os.kill(os.getpid(), signal.SIGKILL)
    return run_many(*given, **named)

questions.run_many = dying
evaluate(["tiny/llada", "tiny/arm"], "synthetic/one-hop", contexts="closed,gold", limit=8, batch=2,
         decoding=aw.decoding.LowConfidence(length=8, steps=8), out=sys.argv[1])
"""


def test_a_killed_evaluation_goes_on_where_it_was(tmp_path):
    out = tmp_path / "out"
    options = {"contexts": "closed,gold", "limit": 8, "batch": 2,
               "decoding": aw.decoding.LowConfidence(length=8, steps=8)}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False)
    assert done.returncode == -signal.SIGKILL
    kept = read_results(out)
    whole = evaluate(models(), "synthetic/one-hop", **options)
    assert 4 == len(kept.rows) < len(whole.rows)
    stopped, real = 0, questions.run_many

    def failing(*given, **named):
        nonlocal stopped
        stopped += 1
        if stopped == 3:
            raise KeyboardInterrupt
        return real(*given, **named)

    with mock.patch.object(questions, "run_many", failing), pytest.raises(KeyboardInterrupt):
        evaluate(models(), "synthetic/one-hop", out=out, **options)
    assert len(read_results(out).rows) == len(kept.rows) + 4, "two batches of two were committed"
    ended = evaluate(models(), "synthetic/one-hop", out=out, **options)
    _same(whole, ended)
    assert read_results(out).rows.equals(ended.rows)


def test_a_line_cut_short_is_asked_again_and_other_damage_is_named(tmp_path):
    options = {"contexts": "closed", "decoding": SHORT, "limit": 3, "out": tmp_path}
    first = evaluate(models()[1:], "synthetic/one-hop", **options)
    (path,) = tmp_path.glob("*/items.jsonl")
    raw = path.read_bytes()
    gone = r"1 of the 3 answers written to .*items\.jsonl are gone"
    path.write_bytes(raw[:-20])
    with pytest.warns(AnchorwatchWarning, match=f"{gone}: run the evaluation again"):
        assert len(read_results(tmp_path).rows) == 2
    with pytest.warns(AnchorwatchWarning, match=f"{gone}, and are asked again"):
        assert evaluate(models()[1:], "synthetic/one-hop", **options).rows.equals(first.rows)
    assert path.read_bytes() == raw
    path.with_name("count.json").unlink()  # as an older version left it
    path.write_bytes(raw[: raw.rindex(b"\n", 0, -1) + 1] + b'{"half' + b"x" * 9000)
    assert len(read_results(tmp_path).rows) == 2
    assert evaluate(models()[1:], "synthetic/one-hop", **options).rows.equals(first.rows)
    assert path.read_bytes() == raw, "nothing is left of a longer half"
    changed = raw.replace(b'"exact_match": 0.0', b'"exact_match": 1.0', 1)
    assert changed != raw
    for damaged in (changed, b"{}\n" + raw, raw.replace(b"\n", b"\n\n", 1)):
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match=r"items.jsonl, line \d is damaged: remove that line"):
            read_results(tmp_path)
    path.write_bytes(raw)
    manifest = path.with_name("manifest.json")
    manifest.write_text(manifest.read_text().replace("closed", "opened"))
    with pytest.raises(TraceError, match=r"manifest.json is damaged .* remove .* asked again"):
        read_results(tmp_path)


def test_two_evaluations_do_not_write_to_one_cell(tmp_path):
    manifest = {"model": {"source": "x"}, "edit": "none"}
    with Cell(manifest, tmp_path), pytest.raises(SpecError, match="another evaluation is writing"):
        Cell(manifest, tmp_path).__enter__()
    with Cell(manifest, tmp_path) as cell:
        assert cell.done == {}


def test_a_digest_is_of_what_decides():
    held = {"model": {"source": "a", "weights": "w", "notes": []}, "edit": "none", "edits": []}
    same = {"model": {"source": "b", "weights": "w", "notes": ["x"]}, "edit": "no", "edits": []}
    assert digest_of(held) == digest_of(same)
    assert digest_of(held) != digest_of(held | {"edits": [{"name": "no_op"}]})
    assert digest_of(held) != digest_of(held | {"model": {"source": "a", "weights": "v"}})


def test_items_that_do_not_fit_are_counted_with_their_reason(tmp_path):
    rows = [
        {"question": "Where?", "answer": "bay", "passages": [{"text": "In the bay.", "gold": True}]},
        {"question": "Long?", "answer": "yes", "passages": [{"text": "so long " * 600, "gold": True}]},
        {"question": "No gold?", "answer": "x", "passages": [{"text": "None.", "gold": False}]},
        {"question": "What is <|mask|>?", "answer": "x", "passages": [{"text": "A.", "gold": True}]},
    ]  # fmt: skip
    found = evaluate(models(), lines(tmp_path / "t.jsonl", rows), contexts="gold", decoding=SHORT)
    assert len(found.rows) == 8 and found.num_unfit == 5
    reasons = found.unfit().set_index("model").unfit
    assert sorted(reasons["tiny/llada"])[0] == "it does not fit the 512 positions of tiny/llada"
    assert "it spells <|mask|>, a control token" in sorted(reasons["tiny/llada"])[1]
    assert sorted(reasons["tiny/llada"])[2] == "none of its passages is gold"
    lost = found.rows[found.rows.unfit != ""]
    assert lost.exact_match.isna().all() and (lost.steps == -1).all()
    long = lost[lost.unfit.str.contains("fit")]
    assert (long.prompt_positions > 512).all()


@pytest.mark.parametrize("token", ["<|end|>", "<|user|>", "<|answer|>", "<|start|>", "<|pad|>"])
@pytest.mark.parametrize("where", ["question", "context"])
def test_control_tokens_in_the_text_are_no_text(token, where, tmp_path):
    item = {"question": "Where is it?", "answer": "bay", "context": "In the bay."}
    rows = [item, item | {where: f"It is {token} in the bay"}]
    path = lines(tmp_path / "t.jsonl", rows)
    found = evaluate(models(), path, contexts="closed,gold", decoding=SHORT).rows
    shown = (found.context == "gold") | (where == "question")
    assert set(found[found.unfit != ""].unfit) == {
        f"it spells {token}, a control token of {one}: take it out of the text"
        for one in ("tiny/llada", "tiny/arm")
    }
    assert (found.unfit != "").sum() == shown.sum() / 2, "closed, no passage is shown"
    spaced = {**item, "context": token.replace("<", "< ")}
    spaced = evaluate(models(), lines(path, [spaced]), contexts="gold", decoding=SHORT)
    assert spaced.num_unfit == 0, "other spellings are text"


def test_items_that_stand_there_twice_are_asked_once(tmp_path):
    path = written_to(tmp_path / "t.jsonl", 2)
    path.write_text(path.read_text() * 2)
    found = evaluate(models()[1:], path, contexts="closed", decoding=SHORT)
    assert len(found.rows) == 2 and found.about["duplicates"] == 2 and found.about["items"] == 2


def test_bad_lines_are_found_before_any_weights_are_used(tmp_path):
    path = written_to(tmp_path / "t.jsonl", 3)
    path.write_text(path.read_text() + "oops\n")
    with (
        mock.patch.object(questions, "run_many", side_effect=AssertionError("touched")),
        pytest.raises(SpecError, match=r"t.jsonl, line 4: is not JSON"),
    ):
        evaluate(models(), path, contexts="closed", decoding=SHORT)
    counted = evaluate(models()[1:], task(path, bad="count"), contexts="closed", decoding=SHORT)
    assert list(counted.about["bad"]) == ["line 4"] and len(counted.rows) == 3


def test_traces_are_kept_with_their_parts(tmp_path):
    probes = [aw.probes.received(), aw.probes.region_flow()]
    found = evaluate(
        models()[:1], "synthetic/two-hop", contexts="adjacent+1,closed", decoding=SHORT, limit=2,
        probes=probes, out=tmp_path, batch=2,
    )  # fmt: skip
    for row in found.rows.itertuples():
        trace = aw.read(tmp_path / row.cell / "traces" / f"{row.item}.trace")
        assert trace.digest()[:12] == row.run and "region_flow" in trace
        parts = {"question", "answer"} | ({"gold 1", "gold 2", "distractor 1"} if row.passages else set())  # fmt: skip
        assert set(trace.manifest["regions"]) == parts
    bare = evaluate(
        models()[:1], "synthetic/two-hop", contexts="adjacent+1,closed", decoding=SHORT, limit=2
    )
    assert (bare.rows.prediction == found.rows.prediction).all(), "watching changes nothing"


def test_a_trace_left_by_a_kill_gives_way(tmp_path):
    options = {"contexts": "closed", "decoding": SHORT, "limit": 1, "out": tmp_path,
               "probes": [aw.probes.entropy()]}  # fmt: skip
    first = evaluate(models()[:1], "synthetic/one-hop", **options)
    (path,) = tmp_path.glob("*/items.jsonl")
    path.write_bytes(b"")
    path.with_name("count.json").unlink()
    assert evaluate(models()[:1], "synthetic/one-hop", **options).rows.equals(first.rows)


def test_masks_after_the_answer():
    """While the answer is written, all of them are masked; a model without masks has none."""
    mdm, arm = models()
    base = SHORT["mdm"]
    longer = questions.add_masks(base, context("gold~masks16"), mdm)
    assert longer == aw.decoding.LowConfidence(length=24, steps=12, block=8)
    assert questions.add_masks(SHORT["arm"], context("gold~masks16"), arm) == SHORT["arm"]
    found = evaluate(
        [mdm, arm], "synthetic/one-hop", contexts="gold,gold~masks16", decoding=SHORT, limit=3
    )
    key, item = _keyed(3)[0]
    ids = mdm.encode(context("gold").apply(item).prompt())
    taken = list(islice(aw.steps(mdm, ids, longer), 4))
    assert all((step.canvas[-16:] == mdm.mask_id).all() for step in taken)
    after = taken[-1].canvas.copy()
    after[taken[-1].positions] = taken[-1].tokens
    said = mdm.decode(
        questions.until_end(
            after[len(ids) : len(ids) + 8].tolist(), mdm.specials.end_ids, mdm.mask_id
        )
    )
    row = found.rows[(found.rows.context == "gold~masks16") & (found.rows.item == key)]
    assert row[row.model == "tiny/llada"].written.item() == said
    causal = found.rows[found.rows.kind == "arm"].pivot(
        index="item", columns="context", values="written"
    )
    assert (causal["gold"] == causal["gold~masks16"]).all()


def test_defaults_are_sixteen_positions_for_both():
    mdm, arm = (questions.default_decoding(model) for model in models())
    assert mdm == aw.decoding.LowConfidence(length=16, steps=8)
    assert arm == aw.decoding.LeftToRight(length=16)
    one = evaluate(models(), "synthetic/one-hop", contexts="closed", limit=1,
                   decoding=aw.decoding.LowConfidence(length=4, steps=2))  # fmt: skip
    held = {m["model"]["kind"]: m["decoding"] for m in one.manifests.values()}
    assert held["mdm"]["length"] == held["arm"]["length"] == 4


def test_manifests_say_what_it_takes_to_make_them_again(asked):
    for manifest in asked.manifests.values():
        assert manifest["template"]["name"] == "plain" and manifest["task"]["split"] == "held-out"
        assert manifest["model"]["weights"] and manifest["decoding"]["length"] == 8
        json.dumps(manifest)
    assert template("plain").as_dict()["stops"] == ["\n"]


def test_a_long_prompt_looks_the_vocabulary_up_once():
    model, size = load("tiny/arm"), mock.PropertyMock(return_value=load("tiny/arm").vocab_size)
    with mock.patch.object(type(model), "vocab_size", size):
        assert len(model.encode("the anchor " * 50)) > 50
    assert size.call_count == 1


def test_a_wrong_name_is_said_before_any_model_is_asked(monkeypatch):
    monkeypatch.setattr(
        grid.LoadOptions, "load", lambda _, source: pytest.fail(f"{source} was loaded")
    )
    with pytest.raises(ModelError, match="tiny/none"):
        evaluate(["tiny/llada", "tiny/none"], "synthetic/one-hop", contexts="gold")
