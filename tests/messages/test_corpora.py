"""What a world, a corpus or a tokenizer cannot do is refused, and the way out is said."""

import json

import pytest

from anchorwatch import worlds
from anchorwatch.errors import ModelError, SpecError
from anchorwatch.evaluation.synthetic import Backcopy, Distractors, World
from anchorwatch.training import corpora, data, tokenizer
from anchorwatch.training.data import read_texts
from strategies import load


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: World("test"), "split='test' is unknown: expected 'train' or 'held-out'"),
        (lambda: World(hops=3), "hops=3: a question has 1 hop or 2"),
        (lambda: World(seed=-1), "seed=-1: expected a whole number, 0 or more"),
        (lambda: World(extra=1.5), "extra=1.5: expected a whole number"),
        (lambda: World(reverse=2), "reverse=2 is a share: expected 0 to 1"),
        (
            lambda: World(relations=("age",)),
            "no relation is called 'age': expected birthplace, home",
        ),
        (lambda: World(hops=2, relations=("trade",)), "make two hops: say for example"),
        (lambda: World()[-1], "items are counted from 0: there is no item -1"),
        (lambda: Distractors(hard=-1), "hard=-1 is no number of passages, 0 or more"),
        (lambda: worlds.items(n=-1), "n=-1 is no number of items"),
        (lambda: World()[0].arrange([1]), "name places from 0 to 0, each at most once"),
        (lambda: World()[0].keep("silver"), "expected gold, random, hard, counterfactual"),
        (lambda: Backcopy(triggers=2), "triggers=2 is a share: expected 0 to 1"),
        (lambda: Backcopy(back=0), "back=0: expected 1 to 16 words"),
        (lambda: Backcopy(successors=0), "successors=0: expected 1 to"),
        (lambda: data.Questions(chat=3.0), "chat=3.0 is a share"),
        (lambda: data.Questions(room=0), "room=0: an answer needs at least 1 position"),
        (lambda: data.File(), "a file needs a path: say path = 'texts.jsonl'"),
        (lambda: tokenizer.train_vocabulary([], 100), "a vocabulary of 100: expected 512 to 65536"),
    ],
)
def test_values_that_cannot_be(make, says):
    with pytest.raises(SpecError) as error:
        make()
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"mixture": []}, "corpus.mixture is unknown: expected mix, tokenizer, vocabulary, seed"),
        ({"mix": []}, "the corpus is empty: a mix needs at least one kind"),
        ({"mix": "prose"}, "corpus.mix is a list of tables"),
        ({"mix": [{"kind": "poem"}]}, "kind='poem' is unknown: expected questions, passages"),
        ({"mix": [{}]}, "kind=None is unknown"),
        (
            {"mix": [{"kind": "prose", "hops": 1}]},
            "prose takes no hops: it takes nothing but a weight",
        ),
        (
            {"mix": [{"kind": "passages", "hop": 1}]},
            "passages takes no hop: it takes extra, filler",
        ),
        (
            {"mix": [{"kind": "questions", "hops": "one"}]},
            "questions.hops='one': expected a whole number",
        ),
        ({"mix": [{"kind": "questions", "chat": True}]}, "questions.chat=True: expected a number"),
        ({"mix": [{"kind": "questions", "relations": "home"}]}, "is no list of names"),
        ({"mix": [{"kind": "prose", "weight": 0}]}, "weight=0: expected a number above 0"),
        ({"mix": [{"kind": "prose", "weight": "all"}]}, "weight='all' is no number"),
        ({"seed": -3}, "corpus.seed=-3: expected a whole number, 0 or more"),
        ({"mix": [{"kind": ["prose"]}]}, "kind=['prose'] is unknown: expected questions"),
        ({"tokenizer": 5}, "corpus.tokenizer=5: expected the path of a folder"),
        ({"tokenizer": "x", "vocabulary": 512}, "there is one tokenizer; say one of the two"),
    ],
)
def test_a_table_that_says_the_impossible(said, says):
    with pytest.raises(SpecError) as error:
        corpora.read_corpus(said, 64)
    assert says in str(error.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer that has learned nothing: bytes, pairs of digits and special tokens."""
    folder = tmp_path_factory.mktemp("bytes")
    tokenizer.train_vocabulary(["the sea"], 512).save(folder)
    return str(folder)


def test_rows_that_are_too_short(folder):
    with pytest.raises(SpecError, match="a row needs 8 tokens or more"):
        corpora.read_corpus({"tokenizer": folder, "mix": [{"kind": "backcopy"}]}, 4)
    corpus = corpora.read_corpus({"tokenizer": folder, "mix": [{"kind": "questions"}]}, 12)
    with pytest.raises(
        SpecError, match=r"do not fit into length 12: the shortest of 64 takes .*; raise"
    ):
        corpus[0]


def test_a_tokenizer_that_is_not_there(tmp_path):
    with pytest.raises(
        ModelError, match=r"holds no tokenizer: give a folder with a tokenizer\.json"
    ):
        corpora.read_corpus({"tokenizer": str(tmp_path)}, 64)


def test_a_checkpoint_brings_its_own_tokenizer():
    stock = load("tiny/llada").tokenizer
    with pytest.raises(SpecError, match=r"corpus.vocabulary: .* the checkpoint brings its own"):
        corpora.read_corpus({"vocabulary": 512}, 64, tokenizer=stock)


def bad(path, content, says):
    path.write_bytes(content)
    with pytest.raises(SpecError) as error:
        read_texts(path)
    assert says in str(error.value), error.value
    assert str(path) in str(error.value)


def test_bad_lines_are_named_by_number(tmp_path):
    path = tmp_path / "a.jsonl"
    good = b'{"text": "the sea"}\n'
    bad(path, good + b"{oops\n", 'line 2: not JSON. Each line is {"text"')
    bad(path, good + good + b"[1]\n", "line 3: a list, not an object")
    bad(path, b'\n{"text": ""}\n', "line 2: 'text' is no text")
    bad(path, b'{"text": 5}\n', "line 1: 'text' is no text")
    bad(path, b'{"prompt": "why?"}\n', "line 1: no 'answer'")
    bad(path, b'{"question": "why?"}\n', "line 1: no 'prompt'")
    bad(path, good + b'{"text": "\xff"}\n', "line 2: not UTF-8")
    bad(path, b'{"text": "\\ud800"}\n', "line 1: 'text' has a lone surrogate")
    bad(path, b"x\n" * 9, "line 5: not JSON; and 4 more lines")
    bad(path, good + b'{"prompt": "a", "answer": "b"}\n', "first in line 2, prompts with answers")
    bad(path, b"\n \n", "is empty: give it lines of")
    bad(tmp_path / "a.txt", b" \n", "is empty: give it at least one text")
    bad(tmp_path / "a.txt", b"one\ntwo\n\xff\n", "line 3: not UTF-8; save the file as UTF-8")
    bad(tmp_path / "a.csv", b"one", "a corpus file is .txt or .jsonl")
    with pytest.raises(SpecError, match="cannot be read"):
        read_texts(tmp_path / "none.txt")


def test_a_pair_that_is_too_long_is_named(tmp_path, folder):
    path = tmp_path / "pairs.jsonl"
    lines = [{"prompt": "why?", "answer": "so"}] * 30
    lines[7] = {"prompt": "why " * 90, "answer": "so"}
    path.write_text("\n".join(map(json.dumps, lines)))
    said = {"tokenizer": folder, "mix": [{"kind": "file", "path": str(path)}]}
    with pytest.raises(
        SpecError, match=r"line 8: prompt and answer take \d+ tokens and length is 64"
    ):
        corpora.read_corpus(said, 64)


def test_a_file_too_short_to_part(tmp_path, folder):
    path = tmp_path / "short.txt"
    path.write_text("the sea\n")
    corpus = corpora.read_corpus(
        {"tokenizer": folder, "mix": [{"kind": "file", "path": str(path)}]}, 64
    )
    with pytest.raises(
        SpecError, match=r"too short \(1 pieces\), .* give it more texts that differ"
    ):
        corpus.held_out()


def test_a_file_that_repeats_itself_has_nothing_to_hold_out(tmp_path):
    path = tmp_path / "same.jsonl"
    path.write_text('{"text": "the sea"}\n' * 50)
    with pytest.raises(SpecError, match="repeats itself too much, to have a held-out split: give"):
        read_texts(path).take_split("held-out")


def test_chat_rows_need_role_tokens(tmp_path):
    from checkpoints import write_tokenizer

    write_tokenizer(tmp_path, eos_token="<|end|>")
    with pytest.raises(SpecError, match=r"no <.user.> and <.answer.> tokens: say chat = 0"):
        corpora.read_corpus({"tokenizer": str(tmp_path), "mix": [{"kind": "questions"}]}, 64)
