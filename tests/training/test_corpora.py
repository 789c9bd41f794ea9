"""Corpora: rows by number, a tokenizer that loses nothing, and no held-out word in training text."""

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import anchorwatch as aw
from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic import World, fragments, split_of
from anchorwatch.evaluation.synthetic.names import _UNWANTED, _pool
from anchorwatch.models.families import by_name
from anchorwatch.models.tokens import find_mask, load_tokenizer, specials_of
from anchorwatch.training import corpora, data, tokenizer
from anchorwatch.training.data import is_held_out, python_prose, read_texts
from checkpoints import llada_config, llada_names, network, tensors_of, write
from references import reading
from tolerances import BINOMIAL_ERRORS

LENGTH = 128


@pytest.fixture(scope="module")
def corpus():
    return corpora.read_corpus({}, LENGTH, seed=3)


@pytest.fixture(scope="module")
def vocabulary(corpus):
    return corpus.vocabulary


def same(a, b):
    return a.ids.tolist() == b.ids.tolist() and a.scored.tolist() == b.scored.tolist()


# The tokenizer


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=200))
def test_any_text_comes_back(vocabulary, text):
    assert vocabulary.text(vocabulary.ids(text)) == text
    assert vocabulary.stock.decode(vocabulary.ids(text)) == text


SPELLED = st.sampled_from([*tokenizer.SPECIALS, "<|", "|>", "<", "mask", " ", "\n", "a"])


@given(st.lists(SPELLED, max_size=12).map("".join))
def test_no_text_makes_a_special_token(vocabulary, text):
    ids = vocabulary.ids(text)
    assert not set(ids) & set(range(len(tokenizer.SPECIALS)))
    assert vocabulary.text(ids) == text


def test_special_tokens_are_the_first_ids(vocabulary):
    assert vocabulary.stock.convert_tokens_to_ids(list(tokenizer.SPECIALS)) == [*range(6)]
    assert (vocabulary.start, vocabulary.end, vocabulary.roles) == ([1], 2, (4, 5))
    assert len(vocabulary) == 2048


def test_bytes_of_any_kind_have_a_token(vocabulary):
    pieces = vocabulary.stock.get_vocab()
    assert sum(len(piece) == 1 for piece in pieces) >= 256


def test_numbers_are_read_by_two(vocabulary):
    for year in (*_pool("year", "held-out"), *_pool("year", "train")):
        assert len(vocabulary.ids(f" {year}")) == 2, year


def test_unseen_names_cost_what_seen_ones_cost(vocabulary):
    cost = {
        split: np.mean(
            [
                len(vocabulary.ids(" " + World(split, hops, 8)[i].answers[0]))
                for hops in (1, 2)
                for i in range(1500)
            ]
        )
        for split in ("train", "held-out")
    }
    assert abs(cost["held-out"] / cost["train"] - 1) < 0.05
    assert cost["train"] < 3.2


def test_the_same_texts_teach_the_same():
    texts = [text for i in range(300) for text in fragments(World()[i].prompt())]
    learned = [tokenizer.train_vocabulary(iter(texts), 800) for _ in range(3)]
    assert len({vocabulary.digest for vocabulary in learned}) == 1
    assert learned[0].digest != tokenizer.train_vocabulary(texts[::2], 800).digest


def test_the_files_are_read_by_what_loads_models(vocabulary, tmp_path):
    vocabulary.save(tmp_path)
    read = load_tokenizer(tmp_path, by_name("llada"))
    mask = find_mask(None, {}, {}, read, by_name("llada"))
    specials, notes = specials_of(mask, {}, {}, read, (2048, 2048))
    assert (specials.mask_id, specials.eos_ids, specials.bos_id, specials.pad_id) == (3, (2,), 1, 0)
    assert specials.special_ids == frozenset(range(6)) and not notes
    again = tokenizer.read_vocabulary(tmp_path)
    assert again.digest == vocabulary.digest
    assert again.ids("<|mask|> Tarbo") == vocabulary.ids("<|mask|> Tarbo")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["mask_token"] == "<|mask|>"


def test_a_loaded_model_reads_prompts_and_chats_as_the_rows_do(vocabulary, tmp_path):
    made = network("llama", bidirectional=True, vocab_size=2048, max_position_embeddings=256)
    config = llada_config(vocab_size=2048, embedding_size=2048, mask_token_id=3)
    config |= {"max_sequence_length": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
    write(tmp_path, config, llada_names(tensors_of(made)))
    vocabulary.save(tmp_path)
    model = aw.load(str(tmp_path), device="cpu")
    for chat in (0.0, 1.0):
        kind = data.Questions(chat=chat, random=0, hard=0)
        place = data.RowSettings(vocabulary, LENGTH, "train", 0)
        row = kind.open(place)(4)
        item = World(distractors=data.Distractors())[4]
        given_ = [{"role": "user", "content": item.message()}] if chat else item.prompt()
        assert list(model.encode(given_)) == row.ids[~row.scored].tolist()
    regions = item.regions()
    trace = aw.run(
        model, item.prompt(), aw.decoding.LowConfidence(4, 2), probes=(), regions=regions
    )
    begin, end = regions["question"]
    inside = trace["region"].values == trace.manifest["regions"].index("question")
    told = trace.canvas[0][inside]
    assert vocabulary.text(told).strip() == item.prompt()[begin:end]


# Rows


@given(st.integers(0, 2**40))
def test_a_row_is_a_function_of_its_number(corpus, index):
    row = corpus[index]
    corpus[index + 1]
    assert same(row, corpus[index])
    assert 2 <= len(row.ids) <= LENGTH
    assert row.ids.shape == row.scored.shape and row.ids.dtype == np.int32
    assert row.ids.min() >= 0 and row.ids.max() < len(corpus.vocabulary)
    assert row.ids[0] == 1 and (row.ids != 0).all() and (row.ids != 3).all()


def test_any_whole_number_names_a_row(corpus):
    assert all(same(corpus[np.int64(index)], corpus[index]) for index in range(40))
    with pytest.raises(TypeError):
        corpus[3.0]


def test_rows_are_the_same_for_whoever_reads_the_spec_again(corpus, tmp_path):
    corpus.vocabulary.save(tmp_path)
    again = corpora.read_corpus({"tokenizer": str(tmp_path), "seed": 3}, LENGTH)
    assert again.digest == corpus.digest
    assert all(same(again[i], corpus[i]) for i in range(200, 300))


def test_the_digest_sees_everything(corpus):
    v = corpus.vocabulary
    mix = [{"kind": "questions"}, {"kind": "backcopy"}]

    def digest(mix=mix, length=LENGTH, seed=0):
        return corpora.read_corpus({"mix": mix}, length, seed, tokenizer=v.stock).digest

    others = [
        digest(length=96),
        digest(seed=1),
        digest(mix=mix[:1]),
        digest(mix=[{**mix[0], "weight": 2}, mix[1]]),
        digest(mix=[{**mix[0], "extra": 1}, mix[1]]),
    ]
    assert len({digest(), *others}) == 6
    assert digest() == digest()


def test_cropped_rows_are_the_ends_of_whole_ones(corpus):
    cropped = replace(corpus, crop=16)
    lost = Counter()
    for index in range(200):
        whole, row = corpus[index], cropped[index]
        first = len(whole.ids) - len(row.ids)
        assert 1 <= first <= 16
        assert row.ids.tolist() == whole.ids[first:].tolist()
        assert row.scored.tolist() == whole.scored[first:].tolist()
        if not whole.scored.all():
            assert row.scored.sum() == whole.scored.sum()  # no answer is cut
        lost[first] += 1
    assert set(lost) == set(range(1, 17))
    assert cropped.digest != corpus.digest
    assert cropped.describe()["crop"] == 16
    assert corpora.read_corpus({"crop": 4}, LENGTH, seed=3).crop == 4


@pytest.mark.parametrize("crop", [-1, 1.5, True])
def test_a_crop_that_is_no_number_of_tokens_is_refused(crop):
    with pytest.raises(SpecError, match=r"corpus.crop=.*expected a whole number, 0 or more"):
        corpora.read_corpus({"crop": crop}, LENGTH)


def test_kinds_come_by_weight(corpus):
    n = 4000
    seen = Counter(corpus[i].kind for i in range(n))
    for kind, share in {"questions": 0.65, "passages": 0.1, "backcopy": 0.15, "prose": 0.1}.items():
        error = (share * (1 - share) / n) ** 0.5
        assert abs(seen[kind] / n - share) < BINOMIAL_ERRORS * error


def test_describe_is_plain(corpus):
    said = json.loads(json.dumps(corpus.describe()))
    assert said["split"] == "train" and len(said["mix"]) == 5
    again = corpora.read_corpus({"mix": said["mix"]}, LENGTH, tokenizer=corpus.tokenizer)
    shares = zip(again.mix.shares, corpus.mix.shares, strict=True)
    assert again.mix.sources == corpus.mix.sources and all(np.isclose(a, b) for a, b in shares)


def test_questions_end_with_their_answer_and_some_ends(vocabulary):
    kind = data.Questions(chat=0.3)
    rows = kind.open(data.RowSettings(vocabulary, 160, "held-out", 5))
    world = kind.world("held-out", 5)
    slots = Counter()
    for index in range(300):
        row, item = rows(index), world[index]
        prompt, slot = row.ids[~row.scored], row.ids[row.scored]
        assert vocabulary.text(slot[slot != 2]) == f" {item.answers[0]}"
        words = slot != 2
        assert not words[words.argmin() :].any()  # the ends are at the end
        assert (np.diff(row.scored.astype(int)) >= 0).all()
        text = vocabulary.text(prompt)
        assert item.question in text
        assert all(p.text in text for p in item.passages if p.gold)
        chat = text.startswith("<|start|><|user|>")
        assert text.endswith("<|end|><|answer|>" if chat else "\nAnswer:")
        slots[len(slot)] += 1
    assert max(slots) <= 16 and set(range(8, 17)) <= set(slots)


def test_rows_have_none_to_all_distractors(vocabulary):
    rows = data.Questions(random=2, hard=1).open(data.RowSettings(vocabulary, 256, "train", 0))
    counts = Counter(vocabulary.text(rows(i).ids).count("Passage:") - 1 for i in range(400))
    assert set(counts) == {0, 1, 2, 3}


def test_short_rows_lose_distractors_and_never_gold(vocabulary):
    kind = data.Questions(random=3, hard=3, chat=0)
    rows = kind.open(data.RowSettings(vocabulary, 64, "train", 0))
    for index in range(200):
        row = rows(index)
        assert len(row.ids) <= 64
        assert "Question: " in vocabulary.text(row.ids) and row.scored.any()


def test_running_text_fills_its_rows(corpus):
    for index in range(400):
        row = corpus[index]
        if row.kind != "questions":
            assert len(row.ids) == LENGTH and row.scored.all()


def test_a_quiz_asks_for_facts_of_its_passage(vocabulary):
    rows = data.Quiz(extra=3, filler=0.0).open(data.RowSettings(vocabulary, 160, "held-out", 5))
    asked = Counter()
    for index in range(200):
        row = rows(index)
        told, *questions = vocabulary.text(row.ids).split("\nQuestion: ")
        slots = np.split(row.ids, np.flatnonzero(np.diff(row.scored.astype(int))) + 1)[1::2]
        assert len(slots) == len(questions) >= 1 and len(row.ids) <= 160
        for slot, question in zip(slots, questions, strict=True):
            answer = question.split("\nAnswer: ")[1]
            assert vocabulary.text(slot) == f" {answer}" and answer.endswith("<|end|>")
            assert answer.removesuffix("<|end|>") in told
        asked[len(questions)] += 1
    assert set(asked) >= {1, 2, 3}


def test_a_short_quiz_asks_the_questions_that_fit(vocabulary):
    rows = data.Quiz(extra=3).open(data.RowSettings(vocabulary, 48, "train", 0))
    for index in range(100):
        assert len(rows(index).ids) <= 48 and rows(index).scored.any()
    with pytest.raises(aw.AnchorwatchError, match="no passage with a question fits into length 8"):
        data.Quiz().open(data.RowSettings(vocabulary, 8, "train", 0))(0)


def test_what_is_told_again_is_the_same_in_other_words():
    world = World("train", 1, 7, extra=3, filler=0.0)
    different = 0
    for index in range(100):
        first, second = world.retold(index)
        assert set(reading.triples(first)) == set(reading.triples(second))
        different += first != second
    assert different > 80


def test_kinds_begin_after_their_row(corpus):
    mix = [{"kind": "quiz", "weight": 1.0}, {"kind": "backcopy", "weight": 3.0, "after": 50}]
    some = corpora.read_corpus({"mix": mix}, 96, tokenizer=corpus.tokenizer)
    kinds = [some[i].kind for i in range(400)]
    assert set(kinds[:50]) == {"quiz"} and kinds[50:].count("backcopy") > 200
    assert "backcopy" in {some.held_out()[i].kind for i in range(50)}  # which begins at once
    flat = corpora.read_corpus(
        {"mix": [{**table, "after": 0} for table in mix]}, 96, 0, corpus.tokenizer
    )
    assert some.digest != flat.digest
    assert all(same(some[i], flat[i]) for i in range(50, 80))


def test_a_first_row_of_no_kind_is_refused(corpus):
    mix = [{"kind": "quiz", "after": 5}]
    with pytest.raises(aw.AnchorwatchError, match="all begin after row 5"):
        corpora.read_corpus({"mix": mix}, 96, tokenizer=corpus.tokenizer)


def test_a_backcopy_row_is_its_words(vocabulary):
    from anchorwatch.evaluation.synthetic import Backcopy

    row = data.Backcopy(triggers=0.2).open(data.RowSettings(vocabulary, 64, "train", 9))(2)
    text = " " + " ".join(Backcopy(0.2).words(9, 2, 64))
    assert text.startswith(vocabulary.text(row.ids[1:]))


def test_prose_windows_are_of_the_text(vocabulary):
    rows = data.Prose().open(data.RowSettings(vocabulary, 64, "train", 0))
    told = "<|end|>".join(python_prose().take_split("train").pieces)
    for index in range(40):
        text = vocabulary.text(rows(index).ids[1:])
        assert text.strip("\ufffd") in told


# The held-out split


def test_no_held_out_name_or_value_stands_in_training_text(corpus):
    """Every word of 3000 rows and of all prose that could be one is of the training split."""
    text = [corpus.vocabulary.text(corpus[i].ids) for i in range(3000)]
    text = "\n".join([*text, *python_prose().pieces])
    syllables = r"[BDFGKMPTVZ][aeiou][lnr]?(?:[bdfgkmptvz][aeiou][lnr]?){1,2}"
    found = set(re.findall(rf"\b{syllables}(?:{reading.TOWN}|{reading.LAND})?\b", text))
    assert len(found) > 3000
    for name in found:
        assert split_of(name) == "train" or name[:4].lower() in _UNWANTED, name
    words = re.findall(r"\w+", text)
    said = {*words, *(f"{one} {two}" for one, two in pairwise(words))}
    for kind in ("book", "ship", "trade", "year"):
        assert said.isdisjoint(_pool(kind, "held-out"))
        assert len(said.intersection(_pool(kind, "train"))) > 200


def test_held_out_rows_are_of_the_other_split(corpus):
    held = corpus.held_out()
    assert held.split == "held-out" and held.digest != corpus.digest
    answers = {split: set() for split in ("train", "held-out")}
    for one in (corpus, held):
        for index in range(600):
            row = one[index]
            if row.kind == "questions":
                slot = row.ids[row.scored]
                answers[one.split].add(corpus.vocabulary.text(slot[slot != 2]))
    assert len(answers["held-out"]) > 250
    assert answers["train"].isdisjoint(answers["held-out"])


def test_texts_are_parted_by_piece():
    texts = python_prose()
    seen, held = (texts.take_split(split).pieces for split in ("train", "held-out"))
    assert set(seen) < set(texts.pieces), "training has whole pieces"
    others = [piece for at, piece in enumerate(texts.pieces) if is_held_out(at)]
    assert sorted((*seen, *others)) == sorted(texts.pieces)
    assert 0.03 < len(held) / len(texts.pieces) < 0.2
    assert sum(map(len, texts.pieces)) > 200_000
    assert sum(map(len, held)) > 20_000


def test_held_out_prose_does_not_stand_in_training_prose():
    """The topics contain one another: a fourth of what was held out stood in training too."""
    texts = python_prose()
    told = "\n".join(texts.take_split("train").pieces)
    stretches = {told[at : at + 100] for at in range(len(told))}
    held = texts.take_split("held-out").pieces
    assert not any(p[at : at + 100] in stretches for p in held for at in range(len(p) - 99))
    lines = {line.strip() for line in told.splitlines()}
    kept = [line.strip() for piece in held for line in piece.splitlines()]
    assert sum(len(line) >= 40 for line in kept) > 300
    assert not any(line in lines for line in kept if len(line) >= 40)


def test_what_is_held_out_loses_what_training_has(tmp_path):
    """Planted: of two texts in one piece the seen one goes, short lines with their neighbours."""
    seen = [
        "A line that is long enough to be known again.",
        "a = 1",
        "b = function_of(a)",
        "",
        "c()",
    ]
    own = ["Nobody ever said this line of text before now.", "a = 1", "d = 4"]
    lines = [{"text": "\n".join([f"Piece {n} of the training text.", *seen])} for n in range(60)]
    held = [n for n in range(60) if is_held_out(n)]
    for n in held:
        lines[n] = {"text": "\n".join([*own, *(f"  {line}" for line in seen)])}
    lines[held[0]] = lines[0]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    texts = read_texts(path)
    assert texts.take_split("held-out").pieces == ("\n".join(own) + "\n",) * (len(held) - 1)
    assert len(texts.take_split("train").pieces) == 60 - len(held)


def test_a_pair_of_the_training_split_is_not_held_out(tmp_path):
    path = tmp_path / "pairs.jsonl"
    pairs = [{"prompt": f"Say {n % 25}:", "answer": str(n % 25)} for n in range(100)]
    pairs[next(n for n in range(100) if is_held_out(n))] = {"prompt": "Say 2:", "answer": "no"}
    path.write_text("\n".join(map(json.dumps, pairs)))
    assert [p.answer for p in read_texts(path).take_split("held-out").pairs] == ["no"]


# Files of the user's


def test_a_text_file_is_read_whole(tmp_path, vocabulary):
    path = tmp_path / "sea.txt"
    lines = [f"Line {n} of the sea, with a ¼ and an é.\n" for n in range(3000)]
    path.write_text("".join(lines), encoding="utf-8")
    texts = read_texts(path)
    assert "".join(texts.pieces) == "".join(lines)
    rows = data.File(path=str(path)).open(data.RowSettings(vocabulary, 64, "train", 0))
    assert len(rows(0).ids) == 64 and not same(rows(0), rows(1))


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "the sea"}\n', encoding="utf-8-sig")
    assert read_texts(path).pieces == ("the sea",)


def test_pairs_are_a_row_each(tmp_path, vocabulary):
    path = tmp_path / "pairs.jsonl"
    pairs = [{"prompt": f"What is {n} plus one?", "answer": str(n + 1)} for n in range(100)]
    path.write_text("\n\n".join(map(json.dumps, pairs)))
    rows = data.File(path=str(path)).open(data.RowSettings(vocabulary, 64, "train", 0))
    for index in range(50):
        row = rows(index)
        number = int(re.search(r"is (\d+) plus", vocabulary.text(row.ids))[1])
        assert vocabulary.text(row.ids[row.scored]) == f" {number + 1}<|end|>"


def test_files_count_by_content_and_not_by_path(tmp_path, vocabulary):
    digests = []
    for name, text in (("a", "one "), ("b", "one "), ("c", "two ")):
        (tmp_path / f"{name}.txt").write_text((text * 20 + "\n") * 500)
        said = {"mix": [{"kind": "file", "path": str(tmp_path / f"{name}.txt")}]}
        digests.append(corpora.read_corpus(said, 64, tokenizer=vocabulary.stock).digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_tokenizer_learns_syllables_not_names(vocabulary):
    whole = [piece for piece in vocabulary.stock.get_vocab() if len(fragments(piece[1:])) > 1]
    assert len(whole) < 12  # English ones, such as Golden and Garden


# Tokenizers that put a space before every text


@pytest.fixture(scope="module", params=["metaspace", "prepend"])
def sentencepiece(request):
    """A small SentencePiece-like tokenizer, in the two ways in which checkpoints write its spacing."""
    letters = sorted({*"abcdefghijklmnopqrstuvwxyzPQAW:?.\n", "\u2581"})
    entries = ["<unk>", "<s>", "</s>", *letters, "\u2581O"]
    backend = Tokenizer(
        models.BPE({entry: n for n, entry in enumerate(entries)}, [], unk_token="<unk>")
    )
    if request.param == "metaspace":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    else:
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    stock = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    return tokenizer.Vocabulary(stock)


@pytest.mark.parametrize("text", [" abc", "\nQuestion: what?", "abc", " a b"])
def test_a_text_behind_another_gets_no_space_of_its_own(sentencepiece, text):
    whole = sentencepiece.ids("Passage: was." + text)
    assert sentencepiece.ids("Passage: was.") + sentencepiece.ids_inside(text) == whole


def test_other_tokenizers_read_it_as_any_text(vocabulary):
    assert vocabulary.ids_inside(" abc") == vocabulary.ids(" abc")


def test_texts_are_divided_by_the_token_that_is_named(tmp_path, vocabulary):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"story {n} ends."}) + "\n" for n in range(200)))
    table = {"kind": "file", "path": str(path)}
    stock = vocabulary.stock

    def row(**more):
        mix = {"mix": [table | more]}
        return corpora.read_corpus(mix, 64, tokenizer=stock)[0].ids.tolist()

    plain, divided = row(), row(separator="<|user|>")
    assert vocabulary.end in plain and stock.convert_tokens_to_ids("<|user|>") not in plain
    user = stock.convert_tokens_to_ids("<|user|>")
    assert [user if token == vocabulary.end else token for token in plain] == divided
    with pytest.raises(aw.AnchorwatchError, match=r"no token '<nix>': its special tokens are"):
        row(separator="<nix>")


def test_a_separator_that_is_not_said_leaves_the_digest_as_it_was(vocabulary):
    source = data.File(path="texts.jsonl")
    assert "separator" not in corpora.Mix((source,), (1.0,)).as_dicts()[0]
    assert (
        "separator"
        in corpora.Mix((data.File(path="a.txt", separator="<|end|>"),), (1.0,)).as_dicts()[0]
    )


def test_whole_texts_are_rows_from_their_beginning_to_their_end(tmp_path, vocabulary):
    texts = [f"story {n} of the sea begins here. " + "It goes on. " * (n % 9) for n in range(60)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    mix = {"mix": [{"kind": "file", "path": str(path), "whole": True}]}
    corpus = corpora.read_corpus(mix, 24, tokenizer=vocabulary.stock)
    rows = [[*vocabulary.start, *vocabulary.ids(text), vocabulary.end][:24] for text in texts]
    drawn = [corpus[index].ids.tolist() for index in range(400)]
    kept = [row for n, row in enumerate(rows) if not data.is_held_out(n)]
    assert {tuple(row) for row in drawn} == {tuple(row) for row in kept}
    assert len({len(row) for row in drawn}) > 1
    assert all(corpus[index].scored.all() for index in range(8))


def test_a_long_text_is_one_row_and_no_row_begins_inside_it(tmp_path, vocabulary):
    texts = [f"story {n} begins. " + "\n".join([f"Day {n} of it. " * 80] * 5) for n in range(30)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    mix = {"mix": [{"kind": "file", "path": str(path), "whole": True}]}
    corpus = corpora.read_corpus(mix, 24, tokenizer=vocabulary.stock)
    rows = {tuple([*vocabulary.start, *vocabulary.ids(text)][:24]) for text in texts}
    assert {tuple(corpus[index].ids.tolist()) for index in range(200)} <= rows


def test_a_txt_has_no_whole_texts(tmp_path, vocabulary):
    path = tmp_path / "texts.txt"
    path.write_text("A line of one text.\n" * 2000)
    mix = {"mix": [{"kind": "file", "path": str(path), "whole": True}]}
    with pytest.raises(aw.AnchorwatchError, match=r"is one text: whole = true takes a \.jsonl"):
        corpora.read_corpus(mix, 24, tokenizer=vocabulary.stock)[0]


def test_whole_is_true_or_false():
    mix = {"mix": [{"kind": "file", "path": "a.txt", "whole": 1}]}
    with pytest.raises(aw.AnchorwatchError, match=r"file.whole=1: expected true or false"):
        corpora.read_corpus(mix, 64)


def test_a_quiz_of_several_passages_asks_of_each(vocabulary):
    table = {"mix": [{"kind": "quiz", "passages": 3, "extra": 0, "filler": 0.0}]}
    corpus = corpora.read_corpus(table, 256, tokenizer=vocabulary.stock)
    years = 0
    for index in range(200):
        row = corpus[index]
        text = vocabulary.text(row.ids)
        assert text.count("Passage: ") == 3 and text.count("Question: ") == 3
        told, *asked_of = text.split("\nQuestion: ")
        answers = [part.split("Answer: ")[1].split("<|end|>")[0] for part in asked_of]
        assert all(answer in told for answer in answers)
        assert vocabulary.text(row.ids[row.scored]).count("<|end|>") == 3
        years += all(answer.isdigit() for answer in answers)
    assert years >= 3, "half of the rows state one relation three times"
    with pytest.raises(aw.AnchorwatchError, match="passages=0: a quiz needs at least 1"):
        data.Quiz(passages=0)


def test_a_quiz_of_one_passage_is_what_it_was(vocabulary):
    assert "passages" not in corpora.Mix((data.Quiz(),), (1.0,)).as_dicts()[0]
    passage, pairs = data.Quiz()._world("train", 0).quiz(4)
    row = corpora.read_corpus({"mix": [{"kind": "quiz"}]}, 256, tokenizer=vocabulary.stock)[4]
    text = vocabulary.text(row.ids)
    assert text.startswith(f"<|start|>Passage: {passage}\nQuestion: {pairs[0][0]}")


def test_a_recall_row_says_each_pair_again_and_scores_the_second_name(vocabulary):
    table = {"mix": [{"kind": "recall", "relations": ["birthplace"]}]}
    corpus = corpora.read_corpus(table, 256, tokenizer=vocabulary.stock)
    counts = set()
    for index in range(100):
        row = corpus[index]
        text = vocabulary.text(row.ids).removeprefix("<|start|>")
        sentences = text.split(". ")
        count = len(sentences) // 2
        counts.add(count)
        assert len(sentences) == 2 * count
        # A later sentence has the names of a first one; of those the second is scored.
        names = [re.findall(r"\b(?!It\b)[A-Z][a-z]+", sentence) for sentence in sentences]
        assert sorted(map(sorted, names[:count])) == sorted(map(sorted, names[count:]))
        scored = vocabulary.text(row.ids[row.scored]).split()
        assert all(words[-1] in scored and words[0] not in scored for words in names[count:])
    assert counts == {2, 3, 4}


def test_names_of_recall_rows_are_of_their_split(vocabulary):
    table = {"mix": [{"kind": "recall", "relations": ["mentor"]}]}
    corpus = corpora.read_corpus(table, 128, tokenizer=vocabulary.stock)
    for source in (corpus, corpus.held_out()):
        for index in range(50):
            words = re.findall(r"[A-Z][a-z]+", vocabulary.text(source[index].ids))
            assert {split_of(word) for word in words} == {source.split}


def test_a_recall_row_has_something_to_tell_apart(vocabulary):
    with pytest.raises(aw.AnchorwatchError, match="subjects=1: there is nothing to tell apart"):
        data.Recall(subjects=1)
    with pytest.raises(aw.AnchorwatchError, match="no relation is called 'colour': expected birth"):
        data.Recall(relations=("colour",))
    with pytest.raises(aw.AnchorwatchError, match="do not fit into length 8: raise length, or low"):
        corpora.read_corpus({"mix": [{"kind": "recall"}]}, 8, tokenizer=vocabulary.stock)[0]
