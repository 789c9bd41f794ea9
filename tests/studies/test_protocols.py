"""The papers' protocols: what they set, what wins over them, what is refused, what keys know."""

import json
from dataclasses import replace

import pytest

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchWarning, PromptError, SpecError
from anchorwatch.generation.block_decoding import BlockDiffusion, TokenEditing
from anchorwatch.generation.decoding import DreamOrder, LeftToRight, LowConfidence
from anchorwatch.generation.dream_on import DreamOn
from anchorwatch.models.load import load
from anchorwatch.models.load_options import LoadOptions
from anchorwatch.studies import prompts
from anchorwatch.studies.budget import BUDGETS, Budget, budget
from anchorwatch.studies.collect import collect
from anchorwatch.studies.evidence import (
    Answers,
    Available,
    EvidenceStore,
    Experiment,
    ModelIdentity,
    Runs,
)
from anchorwatch.studies.measure import MDM_RUNS, MDM_TEXT
from anchorwatch.studies.papers import claims, load_experiments
from anchorwatch.studies.plan_study import PlanPiece, Rates, plan_study
from anchorwatch.studies.protocols import PROTOCOLS, Protocol, protocol
from anchorwatch.studies.report.page import run_facts
from anchorwatch.studies.report.text import count_prompts, methods
from anchorwatch.studies.run_study import check_protocol
from checkpoints import write_llada
from planted_study import study

SMALL = Budget("small", 2, length=4, steps=4, items=2, rows=2, text_length=8, text_block=4)
IDENTITY = ModelIdentity("lab/toy-mdm", "mdm", "abc", (), 4, 4, 256, "", "", "cpu")
GOLD = Answers(("mdm",), ("gold",))
TEXT = {"forbid_end": True}
"""Of running text, where a decoding can do without end tokens."""


def store(folder, way):
    load_experiments()  # says what each of them reads
    return EvidenceStore(folder, budget(SMALL, way), Available({"mdm": IDENTITY}))


def test_each_paper_writes_as_it_did():
    ways = {name: budget("standard", way) for name, way in PROTOCOLS.items()}
    rulli, floating, token = (ways[name].text_decoding("mdm") for name in PROTOCOLS)
    assert rulli == LowConfidence(128, 128, block=32, **TEXT)
    assert floating == LowConfidence(32, 32, block=32, **TEXT)
    assert token == LowConfidence(256, 256, temperature=0.1, **TEXT)
    assert ways["rulli"].decoding("mdm") == LowConfidence(128, 128, block=32)
    assert [way.chat for way in PROTOCOLS.values()] == [True, False, False]
    assert ways["rulli"].decoding("arm") == LeftToRight(128, cache=False, stop=False)
    assert ways["floating"].answer_decoding("mdm") == LowConfidence(32, 32)


def test_without_a_protocol_the_budget_decides():
    for much in BUDGETS.values():
        assert much.decoding("mdm") == LowConfidence(much.length, much.steps)
        assert much.answer_decoding("mdm") == LowConfidence(16, 8)
        assert "protocol" not in much.as_dict()
        assert much.protocol.is_default and str(much.protocol) == ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"length": 64}, LowConfidence(64, 64, block=32, **TEXT)),
        ({"length": 64, "steps": 32}, LowConfidence(64, 32, block=32, **TEXT)),
        ({"block": 16}, LowConfidence(128, 128, block=16, **TEXT)),
        ({"decoding": DreamOrder(algorithm="entropy")}, DreamOrder(128, 128, algorithm="entropy")),
        ({"decoding": LowConfidence(64, 32, block=8)}, LowConfidence(64, 32, block=8, **TEXT)),
        ({"decoding": LowConfidence(block=64)}, LowConfidence(128, 128, block=64, **TEXT)),
    ],
)
def test_what_is_said_beside_a_protocol_wins(given, expected):
    way = protocol("rulli", **given)
    assert way.chat
    assert budget("quick", way).text_decoding("mdm") == expected
    assert protocol("rulli", chat=False).chat is False


@pytest.mark.parametrize("name", PROTOCOLS)
def test_running_text_has_no_end_tokens_under_any_preset(name):
    assert budget("quick", protocol(name)).text_decoding("mdm").forbid_end


def test_answers_are_written_in_the_blocks_of_a_protocol():
    quick = budget("quick", protocol("rulli"))
    assert quick.answer_decoding("mdm") == LowConfidence(128, 128, block=32)
    assert budget("quick", protocol("rulli", answer=48)).answer_decoding("mdm").block is None
    own = protocol(decoding=LowConfidence(block=8), answer=16)
    assert budget("quick", own).answer_decoding("mdm") == LowConfidence(16, 16, block=8)
    assert budget("quick").answer_decoding("mdm") == LowConfidence(16, 8)


@pytest.mark.parametrize("decoding", [BlockDiffusion(block=4), TokenEditing(block=4)])
def test_a_decoding_in_blocks_of_the_canvas_keeps_them(decoding):
    ways = (protocol(decoding=decoding), protocol("rulli", decoding=type(decoding)(), block=4))
    for way in ways:
        much = budget("quick", way)
        for how in (much.decoding("mdm"), much.text_decoding("mdm"), much.answer_decoding("mdm")):
            assert how.block == 4
            assert how.num_passes > 0
        assert "in blocks of 4" in much.describe()


def test_a_claim_s_own_decoding_gives_way_unless_it_names_an_order():
    quick, rulli = budget("quick"), budget("quick", protocol("rulli"))
    one_block = Runs("mdm", "text", decoding=LowConfidence(32, 32, forbid_end=True))
    assert one_block.how(quick, "mdm") == one_block.decoding
    assert one_block.how(rulli, "mdm") == LowConfidence(128, 128, block=32, **TEXT)
    free = Runs("mdm", "text", decoding=DreamOrder(32, 32, algorithm="entropy"))
    assert free.how(quick, "mdm") == free.decoding
    assert free.how(rulli, "mdm") == DreamOrder(128, 128, algorithm="entropy")
    arm = Runs("arm", "text", decoding=LeftToRight(32, cache=False, stop=False))
    assert arm.how(quick, "arm") == arm.decoding
    assert arm.how(rulli, "arm") == LeftToRight(128, cache=False, stop=False)


def test_sizes_alone_leave_the_rest_to_the_budget():
    much = budget("quick", protocol(length=24, block=12))
    text = much.text_decoding("mdm")
    assert text == LowConfidence(24, 24, block=12, forbid_end=True)
    assert much.decoding("mdm") == LowConfidence(24, 24, block=12)
    assert (
        budget("quick", protocol(length=30)).text_decoding("mdm").block is None
    )  # 8 is no divisor


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: protocol("wu"), "expected one of rulli, floating, sink-token"),
        (lambda: protocol("rulli", length=48), "block=32 does not divide length=48: use one of"),
        (lambda: budget("quick", protocol(block=5)), "block=5 does not divide length=16"),
        (lambda: Protocol(decoding=LeftToRight()), "say how the masked one does, such as LowConf"),
        (lambda: Protocol(decoding="dream"), r"for example LowConfidence\(\)"),
        (lambda: Protocol(decoding=LowConfidence(8), length=9), "length is given twice"),
        (lambda: Protocol(decoding=DreamOrder(8), block=4), "DreamOrder has no block: leave block"),
        (lambda: Protocol(prompts="one"), r"prompts are a list: say \['Once upon a time'\]"),
        (lambda: Protocol(prompts=[""]), "is no prompt: give text, token ids or chat messages"),
        (lambda: Protocol(contexts={"gold": "open5"}), "name it, task='nq.jsonl'"),
        (lambda: Protocol(task="nowhere.jsonl"), "nowhere.jsonl"),
        (
            lambda: Protocol(task="synthetic/two-hop", contexts={"gold": "open", "closed": "open"}),
            "two contexts are open: claims compare them",
        ),
        (
            lambda: Protocol(decoding=BlockDiffusion()),
            r"say BlockDiffusion\(block=8\) or --block 8",
        ),
        (lambda: Protocol(decoding=TokenEditing()), r"say TokenEditing\(block=8\) or --block 8"),
        (lambda: Protocol(decoding=DreamOn()), r"keeps it, such as DreamOrder\(\)"),
        (lambda: Protocol(length=0), "length=0 is not a whole number of at least 1"),
        (lambda: protocol("rulli", steps=0), "steps=0 is not a whole number of at least 1"),
        (lambda: Protocol(block=-8), "block=-8 is not a whole number of at least 1"),
        (lambda: Protocol(answer=0), "answer=0 is not a whole number of at least 1"),
        (lambda: Protocol(answer=-3), "answer=-3 is not a whole number of at least 1"),
        (lambda: Protocol(template="short"), "no template is called 'short'"),
    ],
)
def test_what_does_not_fit_is_refused(make, says):
    with pytest.raises(SpecError, match=says):
        make()


def test_what_no_claim_would_read_is_refused():
    doubled, values = claims(["floating/H23", "sink_token/H5"])
    texts = Protocol(prompts=("Once upon a time",))
    with pytest.raises(SpecError, match="none of these claims watches running text"):
        check_protocol([values], texts)
    asked = Protocol(task="synthetic/two-hop", contexts={"gold+9": "open5"})
    with pytest.raises(SpecError, match="leave --task out, or name claims"):
        check_protocol([values], asked)
    with pytest.raises(SpecError, match=r"no claim here asks in the context gold\+9: they ask in"):
        check_protocol([doubled], asked)


def test_settings_of_one_checkpoint_need_its_name(tmp_path):
    with pytest.raises(SpecError, match="--mask-id is said of --model, which is not named"):
        aw.studies.plan(["sinks/H3"], loading=LoadOptions(mask_id=5), out=tmp_path)


def test_evidence_under_another_protocol_is_other_evidence(tmp_path):
    ways = [
        Protocol(),
        Protocol(chat=True),
        Protocol(length=16),
        Protocol(prompts=("one text", "another")),
        Protocol(prompts=("one text", "a third")),
    ]
    folders = [store(tmp_path, way).unit_folder(MDM_TEXT, "mdm") for way in ways]
    assert len(set(folders)) == len(ways)
    # Running text of the user's is no question.
    questions = [store(tmp_path, way).unit_folder(MDM_RUNS, "mdm") for way in ways]
    assert questions[0] == questions[3] == questions[4]
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"question": "Who?", "answers": ["Lena"], "passages": ["Lena."]}))
    tasks = [Protocol(), Protocol(task=str(path)), Protocol(task=str(path), answer=8)]
    assert len({store(tmp_path, way).unit_folder(GOLD, "mdm") for way in tasks}) == len(tasks)
    before = store(tmp_path, tasks[1]).unit_folder(GOLD, "mdm")
    path.write_text(path.read_text().replace("Who?", "Who is it?"))
    assert store(tmp_path, tasks[1]).unit_folder(GOLD, "mdm") != before


def test_a_manifest_knows_the_protocol_and_the_plan_says_it():
    much = budget("quick", protocol("rulli", prompts=("a b", "c d")))
    said = much.as_dict()["protocol"]
    assert json.loads(json.dumps(said)) == said
    assert (said["name"], said["chat"], said["length"], said["prompts"]["count"]) == (
        *("rulli", True, 128),
        2,
    )
    assert said["decoding"]["name"] == "LowConfidence"
    assert much.describe() == (
        "questions: 128 positions in blocks of 32, 128 steps; "
        "running text: 128 positions in blocks of 32, 128 steps; "
        "rulli: chat template, LowConfidence, length 128, block 32, 2 prompts, answers of 128"
    )


def test_a_chat_goes_around_prompts_and_keeps_their_regions(tmp_path):
    model = load("lab/toy-mdm")
    kept = store(tmp_path, Protocol(chat=True, prompts=("A ship left.", [5, 6, 7])))
    for spec in (MDM_TEXT, MDM_RUNS):
        collect(kept, spec, "mdm", model, lambda _: None)
    texts, questions = (kept.load(spec).traces for spec in (MDM_TEXT, MDM_RUNS))
    message = model.encode([{"role": "user", "content": "A ship left."}])
    assert texts[0].given[: len(message)].tolist() == message
    assert texts[1].given[:3].tolist() == [5, 6, 7]  # ids stand as they are
    for index, trace in enumerate(questions):
        item, names = prompts.QUESTION_SETS["asked"][index], trace.manifest["regions"]
        own = [model.decode([int(t)]) for t in trace.given]
        gold = "".join(
            token
            for token, of in zip(own, trace["region"].values, strict=True)
            if of == names.index("gold")
        )
        (passage,) = [passage.text for passage in item.passages if passage.gold]
        assert gold.strip() == passage
        assert "Answer:" not in model.decode([int(t) for t in trace.given if t != model.mask_id])


def test_a_task_of_the_users_is_asked_in_its_own_contexts(tmp_path):
    path = tmp_path / "own.jsonl"
    rows = [
        {"question": f"Where is Bo{i}?", "answers": ["Oslo"], "passages": [f"Bo{i} is in Oslo."]}
        for i in range(3)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    kept = store(tmp_path / "kept", Protocol(task=str(path), contexts={"gold": "open1"}, answer=4))
    collect(kept, GOLD, "mdm", load("lab/toy-mdm"), lambda _: None)
    table = kept.load(GOLD).results.rows
    assert set(table["context"]) == {"gold"}
    assert set(table["question"]) == {"Where is Bo0?", "Where is Bo1?"}
    assert (table["unfit"] == "").all()


TOWNS = ("Oslo", "Rome", "Lima", "Kyiv", "Bonn", "Cork", "Pisa", "Riga")


def own_questions(path):
    """A question of each town; the passages of the others are distractors."""
    rows = [
        {"question": f"Where is Bo{i}?", "answers": [town], "passages": [f"Bo{i} is in {town}."]}
        for i, town in enumerate(TOWNS)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_a_task_of_the_users_reaches_runs_and_experiments(tmp_path):
    """Watched runs answer its questions, and experiments read its items."""
    way = Protocol(task=own_questions(tmp_path / "own.jsonl"))
    kept, model = store(tmp_path / "kept", way), load("tiny/llada")
    spec = Experiment("mdm", "gold_looks", passes=48)
    for need in (MDM_RUNS, spec):
        assert kept.unit_folder(need, "mdm") != store(tmp_path, Protocol()).unit_folder(need, "mdm")
        collect(kept, need, "mdm", model, lambda _: None)
    for index, trace in enumerate(kept.load(MDM_RUNS).traces):
        text = model.decode([int(token) for token in trace.given if token != model.mask_id])
        assert f"Bo{index}" in text.replace(" ", "")
        assert {"gold", "distractor 1", "distractor 2"} <= set(trace.manifest["regions"])
    assert set(kept.load(spec)["place"]) == {"first", "middle", "last"}


def test_only_sets_that_claims_read_must_be_made_of_a_task(tmp_path):
    path = tmp_path / "single.jsonl"
    rows = [
        {"question": f"Where is {name}?", "answers": ["Oslo"], "passages": [f"{name} is in Oslo."]}
        for name in ("Bo", "Ada", "Cy", "Di", "Ed")
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    given = {"model": "tiny/llada", "against": "tiny/arm", "out": tmp_path / "out"}
    way = Protocol(task=str(path))
    assert aw.studies.plan(["floating/H23"], **given, protocol=way).runs == ("floating/H23",)
    says = r"as gold\+2: .* --contexts gold\+2=open, or leave out claims .*, sinks/H1$"
    with pytest.raises(SpecError, match=says):
        aw.studies.plan(["floating/H23", "sinks/H1"], **given, protocol=way)
    shown = replace(way, contexts={"gold+2": "open"})
    assert aw.studies.plan(["sinks/H1"], **given, protocol=shown).runs == ("sinks/H1",)


def test_items_of_a_task_are_shown_in_the_context_of_a_set(tmp_path):
    way = Protocol(task=own_questions(tmp_path / "own.jsonl"), contexts={"gold+2": "gold+3"})
    assert len(way.item_of("asked", 1).passages) == 4
    assert len(way.item_of("own passage", 1).passages) == 1
    assert way.prompt_of("alone", 1).text == "Question: Where is Bo1?\nAnswer:"
    assert way.item_of("own passage", 0, apart=True).question == "Where is Bo7?"
    assert way.count_prompts("asked", 100) == 8
    with pytest.raises(PromptError, match=r"own.jsonl has 8 questions, and no other"):
        way.item_of("asked", 8)
    with pytest.raises(PromptError, match="as gold\\+9"):
        replace(way, contexts={"gold+2": "gold+9"}).item_of("asked", 0)


def test_prompts_of_the_users_reach_experiments_that_read_text(tmp_path):
    spec = Experiment("mdm", "head_maps", passes=32)
    plain, own, other = (
        store(tmp_path, way).unit_folder(spec, "mdm")
        for way in (Protocol(), Protocol(prompts=("A ship left.",)), Protocol(prompts=("A bell.",)))
    )
    assert len({plain, own, other}) == 3
    check_protocol(claims(["sinks/H12"]), Protocol(prompts=("A ship left.",)))
    with pytest.raises(PromptError, match="there are 1 prompts, and no other"):
        Protocol(prompts=("A ship left.",)).prompt_of("text", 1)


def test_repeated_prompts_are_used_once_and_it_says_so():
    texts = ["a bell", "a ship", "a bell", [5, 6], (5, 6), "a bell"]
    with pytest.warns(AnchorwatchWarning, match="3 of 6 prompts repeat another") as caught:
        repeated = Protocol(prompts=texts)
    assert len(caught) == 1
    single = Protocol(prompts=["a bell", "a ship", [5, 6]])
    assert repeated.prompts == single.prompts
    assert repeated.count_prompts("text", 10) == 3
    assert repeated.as_dict() == single.as_dict()


def test_repeated_questions_are_units_once_and_it_says_so(tmp_path):
    lines = [
        json.dumps({"question": f"Who is {name}?", "answer": name, "passages": [], "id": name})
        for name in ("Ada", "Bo", "Ada", "Cy", "Bo")
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(lines) + "\n")
    way = Protocol(task=str(path), contexts={"gold+2": "closed"})
    with pytest.warns(AnchorwatchWarning, match=r"2 of 5 questions of .*own\.jsonl repeat"):
        assert way.count_prompts("asked", 10) == 3
    questions = [way.item_of("asked", index).question for index in range(3)]
    assert questions == ["Who is Ada?", "Who is Bo?", "Who is Cy?"]


def test_a_model_without_a_chat_template_is_refused_before_anything_runs(tmp_path):
    bare = str(write_llada(tmp_path / "bare")[0])
    with pytest.raises(SpecError, match=r"bare has no chat template: leave --chat out"):
        aw.studies.plan(["sinks/H3"], model=bare, protocol="rulli", out=tmp_path / "out")


def test_a_decoding_that_the_model_cannot_run_is_refused_before_anything_runs(tmp_path):
    way = Protocol(decoding=BlockDiffusion(block=8, cache=True))
    with pytest.raises(SpecError, match="tiny/llada is bidirectional, say cache=False"):
        aw.studies.plan(["sinks/H3"], model="tiny/llada", protocol=way, out=tmp_path / "out")


def test_runs_know_nothing_of_protocols():
    """A spec's digest is what it was: only the folder of its units depends on the protocol."""
    assert Runs("mdm", "text").digest == MDM_TEXT.digest
    assert "protocol" not in MDM_TEXT.as_dict()


def test_a_report_says_how_runs_wrote():
    much = budget("quick", protocol("rulli", prompts=("a b",)))
    found = study(names=("sinks/H1",))
    said = {"budget": much.as_dict(), "decoding": much.describe()}
    facts = dict(run_facts(replace(found, about=found.about | said)))
    assert facts["watched runs"] == much.describe()
    assert facts["prompts"].endswith("as running text, texts of the user's")
    older = dict(run_facts(found))
    assert "positions written in" in older["watched runs"]
    assert older["prompts"].endswith("held-out stories")
    assert much.describe() in methods(replace(found, about=found.about | said))


def test_a_report_says_how_many_prompts_were_used():
    some = study(names=("sinks/H1",))

    def say(**units):
        pieces = [
            PlanPiece(Runs("mdm", name), "mdm", count, 0, 0, 0, 0.0, 0.0, (), "")
            for name, count in units.items()
        ]
        shown = replace(some, plan=replace(some.plan, pieces=tuple(pieces)))
        assert f"{count_prompts(shown)}, " in dict(run_facts(shown))["budget"]
        return methods(shown)

    wanted = some.about["budget"]["prompts"]
    assert f"with {wanted} prompts of each kind (" in say(asked=wanted, text=wanted)
    assert "with 6 prompts of each kind (" in say(text=6)
    assert f"with {wanted} prompts of each kind but 6 of the set “text” (" in say(
        asked=wanted, text=6
    )


def test_the_plan_says_the_decoding_that_is_run(tmp_path):
    spec = Runs("mdm", "text", decoding=LowConfidence(32, 32, forbid_end=True))
    claim = replace(claims(["sinks/H2"])[0], needs=(spec,), preconditions=())
    for way, decoding in (
        (Protocol(), "length=32, steps=32, forbid_end=True"),
        (protocol("rulli"), "length=128, block=32, steps=128, forbid_end=True"),
    ):
        plan = plan_study([claim], store(tmp_path, way), {"mdm": Rates(1.0, 1.0, 1.0)})
        assert f"runs of mdm, text, LowConfidence({decoding}) (mdm)" in str(plan)
