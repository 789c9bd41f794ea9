"""lm-eval's tasks on our models, beside lm-eval's own model; local data, no network."""

import dataclasses
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

import anchorwatch as aw
import harness_tasks
from anchorwatch.errors import AnchorwatchWarning, SpecError
from anchorwatch.evaluation import Harness, loglikelihood
from anchorwatch.generation.decoding import DreamOrder, LeftToRight, LowConfidence
from anchorwatch.generation.parse import as_decoding, as_edits
from anchorwatch.models.load import load as load_afresh
from command import ENV, type_in
from strategies import load
from tolerances import IDENTITY, LIKELIHOOD

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
TASKS = list(harness_tasks.KINDS)
E = aw.edits


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return harness_tasks.write(tmp_path_factory.mktemp("tasks"))


def evaluated(model, tasks, names=TASKS, **options):
    """{task: the model's responses, sample by sample}, and the whole of what came back."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        for name, value in OFFLINE.items():
            patch.setenv(name, value)
        warnings.simplefilter("default")  # the harness's own
        warnings.simplefilter("error", AnchorwatchWarning)
        manager = TaskManager(include_path=str(tasks), include_defaults=False)
        found = lm_eval.simple_evaluate(
            model=model, tasks=list(names), task_manager=manager, bootstrap_iters=0, **options
        )
    samples = {
        name: [
            sample["resps"] for sample in sorted(found["samples"][name], key=lambda s: s["doc_id"])
        ]
        for name in names
    }
    return samples, found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """tiny/arm as a folder that transformers opens."""
    path, model = tmp_path_factory.mktemp("arm"), load("tiny/arm")
    model.network.save_pretrained(path)
    model.tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_autoregressive_model_has_the_numbers_of_the_harness_s_own(tasks, folder, batch_size):
    from lm_eval.models.huggingface import HFLM

    ours, table = evaluated(Harness(load("tiny/arm"), batch_size=batch_size), tasks)
    own = HFLM(str(folder), batch_size=2, dtype="float32", device="cpu")
    theirs, wanted = evaluated(own, tasks)
    assert ours["aw_write"] == theirs["aw_write"]
    for name in ("aw_choice", "aw_word"):
        for one, other in zip(ours[name], theirs[name], strict=True):
            values = [[answer[0][0] for answer in side] for side in (one, other)]
            assert values[0] == pytest.approx(values[1], abs=LIKELIHOOD)
            assert [a[0][1] for a in one] == [a[0][1] for a in other], "is greedy"
    long = load("tiny/arm").num_positions * LIKELIHOOD / 4  # a few hundred tokens
    ours, theirs = ([row[0][0] for row in side["aw_rolling"]] for side in (ours, theirs))
    assert min(theirs) < -3000, "the long text takes several windows"
    assert ours == pytest.approx(theirs, abs=long)
    for name in TASKS:
        for metric, value in table["results"][name].items():
            if isinstance(value, float):
                assert value == pytest.approx(wanted["results"][name][metric], rel=LIKELIHOOD)


MODELS = {
    "llada": {"pretrained": "tiny/llada"},
    "dream": {"pretrained": "tiny/dream", "decoding": "dream:steps=4:algorithm=entropy"},
    "edited": {"pretrained": "tiny/llada", "edits": "hide-sinks:1:detect=same_shadow"},
    "guided": {"pretrained": "tiny/llada", "guidance": 1.0, "method": "chain"},
    "arm": {"pretrained": "tiny/arm", "edits": "hide-keys:0"},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_task_runs_and_no_batch_changes_it(tasks, name):
    few = {"passes": 16, **MODELS[name]}
    some = ["aw_choice", "aw_word", "aw_write"]
    one, table = evaluated(Harness(**few, batch_size=1), tasks, some)
    many, _ = evaluated(Harness(**few, batch_size="auto"), tasks, some)
    assert one["aw_write"] == many["aw_write"]
    for task in ("aw_choice", "aw_word"):
        for alone, together in zip(one[task], many[task], strict=True):
            values = [[answer[0][0] for answer in side] for side in (alone, together)]
            assert values[0] == pytest.approx(values[1], abs=3 * LIKELIHOOD)
    info = table["config"]
    assert info["anchorwatch_model"]["source"] == MODELS[name]["pretrained"]
    assert info["anchorwatch_seen"]["scored"] == 20
    assert info["anchorwatch_seen"]["written"] == 5
    assert (info["anchorwatch_standard_error"] > 0) == (name in ("llada", "dream", "edited"))
    json.dumps(info)


def test_an_edit_shows_in_the_numbers(tasks):
    plain, _ = evaluated(Harness("tiny/llada"), tasks, ["aw_word"])
    edited, _ = evaluated(Harness("tiny/llada", edits="hide-keys:1"), tasks, ["aw_word"])
    nothing, _ = evaluated(Harness("tiny/llada", edits="no-op"), tasks, ["aw_word"])
    assert plain == nothing
    assert all(one != other for one, other in zip(plain["aw_word"], edited["aw_word"], strict=True))


def requests(kind, *arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, one, place) for place, one in enumerate(arguments)]


def test_a_likelihood_is_that_of_the_function():
    lm, model = Harness("tiny/llada", passes=64), load("tiny/llada")
    asked = [("Lena was born in", " Oslo"), ("The ship lay at", " anchor in the bay by the pier")]
    for (prompt, answer), (value, greedy) in zip(
        asked, lm.loglikelihood(requests("loglikelihood", *asked), disable_tqdm=True), strict=True
    ):
        assert value == pytest.approx(
            loglikelihood(model, prompt, answer, passes=64).value, abs=LIKELIHOOD
        )
        assert greedy is False
    start = lm.loglikelihood(requests("loglikelihood", ("", "Oslo")), disable_tqdm=True)[0][0]
    assert start == pytest.approx(loglikelihood(model, "", "Oslo").value, abs=LIKELIHOOD)


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_greedy_is_what_the_model_writes(name):
    model, lm = load(name), Harness(load(name))
    prompt = model.encode("Lena was born in")
    trace = aw.run(model, prompt, LowConfidence(5), probes=())
    written = trace.canvas[-1][len(prompt) :].tolist()
    other = [*written[:2], 311 if written[2] != 311 else 312, *written[3:]]
    found = lm._loglikelihood_tokens([(("", ""), prompt, written), (("", ""), prompt, other)])
    assert [greedy for _, greedy in found] == [True, False]


def test_a_model_that_writes_in_blocks_is_greedy_in_blocks():
    model = dataclasses.replace(load("tiny/llada"), block=4)
    prompt = model.encode("Lena was born in")
    written = aw.run(model, prompt, LowConfidence(8, block=4), probes=()).canvas[-1]
    answer = written[len(prompt) : len(prompt) + 6].tolist()
    whole = aw.run(model, prompt, LowConfidence(6), probes=()).canvas[-1][len(prompt) :].tolist()
    assert whole != answer, "else the test says nothing"
    lm = Harness(model, passes=16, method="counts")
    found = lm._loglikelihood_tokens([(("", ""), prompt, one) for one in (answer, whole)])
    assert [greedy for _, greedy in found] == [True, False]


def test_generation_stops_where_it_is_told():
    lm, model = Harness("tiny/arm"), load("tiny/arm")
    prompt = "Where is the mate?"
    whole = aw.run(model, prompt, LeftToRight(10), probes=()).text
    word = whole.split()[3]
    asked = {"until": [word, "\n"], "max_gen_toks": 10}
    assert lm.generate_until(requests("generate_until", (prompt, asked))) == [
        whole.partition(word)[0]
    ]
    asked = {"until": [], "max_gen_toks": 4}
    assert lm.generate_until(requests("generate_until", (prompt, asked))) == [
        aw.run(model, prompt, LeftToRight(4), probes=()).text
    ]


def test_a_diffusion_answer_ends_at_its_first_end_token():
    """Whatever stands behind it on the canvas."""
    model = load_afresh("tiny/llada", device="cpu")
    end = model.specials.end_ids[0]
    lm = Harness(model)
    canvas = np.array([[310, 320, 400, end, 401, 402]])
    trace = type("Trace", (), {"canvas": canvas, "__getitem__": lambda self, name: np.zeros(1)})()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anchorwatch.evaluation.lm_eval.run_many", lambda *a, **k: [trace])
        (text,) = lm._write_answers([[310, 320]], LowConfidence(4), [0])
    assert text == model.decode([400])


def test_a_prompt_that_is_asked_again_is_answered_anew_and_order_changes_nothing():
    lm = Harness("tiny/llada", decoding="random:temperature=1.0")
    how = {"until": [], "max_gen_toks": 6}
    asked = [("the anchor", how), ("the ship", how), ("the anchor", how)]
    first = lm.generate_until(requests("generate_until", *asked))
    assert first[0] != first[2]
    turned = lm.generate_until(requests("generate_until", asked[1], asked[0], asked[2]))
    assert turned == [first[1], first[0], first[2]]


def starting(name):
    """The model with a tokenizer that puts a start token before every text by itself."""
    model = load_afresh(name, device="cpu")
    start = model.tokenizer.bos_token
    model.tokenizer._tokenizer.post_processor = TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, model.specials.bos_id)]
    )
    model.tokenizer.chat_template = start + model.tokenizer.chat_template
    return model


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/arm"])
def test_a_text_has_one_start_token_and_the_chat_template_once(name):
    model = starting(name)
    lm, start = Harness(model), model.specials.bos_id
    assert lm.tok_encode("the anchor").count(start) == 1
    said = [{"role": "user", "content": "the anchor"}]
    text = lm.apply_chat_template(said)
    assert text.count("<|user|>") == text.count("<|answer|>") == 1
    ids = lm.tok_encode(text)
    assert ids == model.encode(said)
    assert ids.count(start) == 1
    context, continuation = lm._encode_pair(text, " Oslo")
    assert (context + continuation).count(start) == 1
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm, "_score_pairs", lambda windows: seen.extend(windows) or [])
        with pytest.raises(ValueError, match="shorter"):  # nothing was scored
            lm.loglikelihood_rolling(requests("loglikelihood_rolling", ("the anchor",)))
    assert (seen[0][0] + seen[0][1]).count(start) == 1


def test_what_a_tokenizer_puts_behind_a_text_is_left_out():
    model = load_afresh("tiny/bert", device="cpu")
    start, end = model.specials.bos_id, model.specials.eos_ids[0]
    model.tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<|start|> $A <|end|>", special_tokens=[("<|start|>", start), ("<|end|>", end)]
    )
    context, continuation = Harness(model)._encode_pair("Lena was born in", " Oslo")
    plain = model.tokenizer("Lena was born in Oslo", add_special_tokens=False)["input_ids"]
    assert context + continuation == [start, *plain]
    assert len(continuation) == 1


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/arm"])
def test_what_is_too_long_loses_its_beginning_and_is_counted(name):
    lm, room = Harness(load(name), method="chain" if name == "tiny/llada" else None), 512
    long, answer = list(range(10, 10 + 540)), [400, 401]
    with pytest.warns(AnchorwatchWarning, match="1 of 2 requests lost their beginning"):
        found = lm._loglikelihood_tokens([(None, long, answer), (None, long[:5], answer)])
    assert lm.seen["cut"] == 1
    kept = long[-(room - 2 + (name == "tiny/arm")) :]
    expected = loglikelihood(load(name), kept, answer, method=lm.scoring.method)
    assert found[0][0] == pytest.approx(expected.value, abs=LIKELIHOOD)
    with pytest.warns(AnchorwatchWarning, match="lost their beginning"):
        ids, _, _ = lm._parse_request("the " * 600, {"until": [], "max_gen_toks": 12})
    assert len(ids) == room - 12


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/arm"])
def test_a_continuation_longer_than_the_model_is_cut_like_a_prompt(name):
    """One such request does not stop the others."""
    lm = Harness(load(name), passes=4)
    long, answer = [10 + i % 500 for i in range(600)], [400, 401]
    with pytest.warns(AnchorwatchWarning, match="1 of 2 requests lost their beginning"):
        found = lm._loglikelihood_tokens([(None, [5, 6], long), (None, [5, 6], answer)])
    assert lm.seen["cut"] == 1 and not found[0][1]
    kept = long[-(511 + (name == "tiny/arm")) :]
    for (value, _), (prompt, one) in zip(found, [([6], kept), ([5, 6], answer)], strict=True):
        expected = loglikelihood(load(name), prompt, one, passes=4)
        assert value == pytest.approx(expected.value, rel=IDENTITY)


def test_decodings_and_edits_are_spelled_in_words():
    assert as_decoding("dream:8:steps=4:top_p=0.9") == DreamOrder(8, 4, top_p=0.9)
    assert as_decoding({"name": "LowConfidence", "steps": 4}) == LowConfidence(steps=4)
    assert as_decoding("LeftToRight:cache=false") == LeftToRight(cache=False)
    assert as_decoding(None) is None
    assert as_edits("hide-keys:0+3:layers=1") == (E.hide_keys([0, 3], layers=[1]),)
    assert as_edits("hide-keys:2") == (E.hide_keys([2]),)
    assert as_edits("knock-out:2.3") == (E.knock_out({(2, 3)}),)
    assert as_edits("hide-sinks:2:progress=0.0+0.5/no-op") == (
        E.hide_sinks(2, progress=(0.0, 0.5)),
        E.no_op(),
    )
    assert as_edits([{"name": "hide_sinks", "k": 1}]) == (E.hide_sinks(1),)
    assert as_edits(E.no_op()) == as_edits(["no-op"]) == (E.no_op(),)


@pytest.mark.parametrize("options", [{}, {"decoding": "low-confidence:length=8:steps=2"}])
def test_a_task_says_the_length_and_a_given_decoding_the_rest(options):
    lm = Harness("tiny/llada", **options)
    sampled = {"until": ["x"], "max_gen_toks": 12, "do_sample": True, "temperature": 0.7}
    _, how, stops = lm._parse_request("the", sampled)
    assert stops == ("x",)
    assert how == (LowConfidence(8, 2) if options else LowConfidence(12, temperature=0.7))
    arm = Harness("tiny/arm")._parse_request("the", sampled | {"top_p": 0.9})[1]
    assert arm == LeftToRight(12, temperature=0.7, top_p=0.9)


def test_the_harness_knows_us_by_name_once_we_are_registered(tasks):
    from anchorwatch.evaluation.lm_eval import register

    register()
    register()
    args = "pretrained=tiny/llada,passes=16,edits=hide-keys:0"
    named, found = evaluated("anchorwatch", tasks, ["aw_word"], model_args=args, batch_size=4)
    ours, _ = evaluated(Harness("tiny/llada", passes=16, edits="hide-keys:0"), tasks, ["aw_word"])
    values = [[row[0][0][0] for row in side["aw_word"]] for side in (named, ours)]
    assert values[0] == pytest.approx(values[1], abs=LIKELIHOOD)
    assert found["config"]["model"] == "anchorwatch"


def test_the_command_hands_over_to_the_harness(tasks, tmp_path):
    args = "pretrained=tiny/llada,passes=16,decoding=low-confidence:steps=4,edits=hide-keys:0"
    done = type_in(
        *("lm-eval", "--model_args", args, "--tasks", "aw_word,aw_write", "--limit", 2),
        *("--include_path", tasks, "--output_path", tmp_path / "out", "--log_samples"),
        **OFFLINE,
    )
    assert done.returncode == 0, done.stderr
    assert "|aw_word" in done.stdout
    assert "|aw_write" in done.stdout
    (path,) = (tmp_path / "out").rglob("results*.json")
    held = json.loads(path.read_text())
    assert held["config"]["anchorwatch_edits"][0]["name"] == "hide_keys"
    assert held["config"]["anchorwatch_decoding"]["steps"] == 4
    assert held["config"]["model"] == "anchorwatch"
    assert held["n-samples"]["aw_word"]["effective"] == 2


def test_the_command_says_what_is_wrong_in_one_line(tasks):
    words = ("lm-eval", "--tasks", "aw_word", "--include_path", tasks, "--model_args")
    done = type_in(*words, "pretrained=tiny/llada,pases=3", **OFFLINE)
    assert done.returncode == 2
    assert "error: --model_args has no pases: it takes pretrained, decoding, edits" in done.stderr
    assert "Traceback" not in done.stderr


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "lm_eval":
            raise ModuleNotFoundError(f"No module named {name!r}", name="lm_eval")
sys.meta_path.insert(0, Block())
"""


@pytest.mark.parametrize(
    "code",
    [
        "import anchorwatch as aw\naw.evaluation.Harness",
        "import sys\nfrom anchorwatch.cli.app import main\nsys.argv = ['anchorwatch', 'lm-eval']\nmain()",
    ],
)
def test_without_lm_eval_it_says_what_to_install(code):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, env=ENV, check=False
    )
    assert done.returncode == 1
    assert "needs lm_eval, which is not installed: pip install 'anchorwatch[eval]'" in done.stderr


def test_arguments_that_cannot_be_are_refused():
    cases = [
        (lambda: Harness.create_from_arg_string("passes=3"), "say pretrained=tiny/llada"),
        (lambda: Harness("tiny/llada", batch_size="many"), "at least 1, or auto"),
        (lambda: Harness(load("tiny/llada"), dtype="float32"), "leave them out"),
        (lambda: Harness("tiny/llada", decoding="sideways:3"), "expected one of low-confidence"),
        (lambda: Harness("tiny/llada", decoding="low-confidence:stps=3"), "has no stps: it takes"),
        (lambda: Harness("tiny/llada", decoding=3), "say low-confidence:steps=32"),
        (lambda: Harness("tiny/llada", edits="hide-sinks:1:k=2"), "k is given twice"),
        (lambda: Harness("tiny/llada", edits="hide:1"), "expected one of hide-keys"),
        (lambda: Harness("tiny/llada", edits=[3]), "say hide-keys:0"),
        (
            lambda: Harness("tiny/llada")._parse_request("a", {"max_gen_toks": 512}),
            "max_gen_toks=64",
        ),
        (
            lambda: Harness("tiny/llada")._parse_request("a", {"num_beams": 4}),
            "num_beams=4, which no",
        ),
        (
            lambda: Harness("tiny/llada")._parse_request(
                "a", {"do_sample": True, "temperature": 0.5, "top_p": 0.9}
            ),
            "top_p, which LowConfidence has not: say decoding=dream",
        ),
    ]
    for make, says in cases:
        with pytest.raises(SpecError, match=says):
            make()
