"""Scores agree with hand-checked cases, with laws, and with an outside implementation."""

import math
import string
import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rouge_score import rouge_scorer

from anchorwatch.errors import SpecError
from anchorwatch.evaluation import scores

# prediction, answers: exact match, token F1, whole-word and substring containment, ROUGE-1 recall
TABLE = [
    ("Oslo", ["Oslo"], 1, 1, 1, 1, 1),
    ("oslo.", ["Oslo"], 1, 1, 1, 1, 1),
    ("The cat", ["cat"], 1, 1, 1, 1, 1),
    ("a theatre", ["theatre"], 1, 1, 1, 1, 1),
    ("cat", ["the cat"], 1, 1, 1, 1, 1 / 2),  # ROUGE counts articles
    ("in Oslo", ["Oslo"], 0, 2 / 3, 1, 1, 1),
    ("Oslo", ["Oslo Norway"], 0, 2 / 3, 0, 0, 1 / 2),
    ("because", ["us"], 0, 0, 0, 1, 0),
    ("the U.S. army", ["US"], 0, 2 / 3, 1, 1, 0),  # ROUGE parts U and S
    ("U.S.", ["us"], 1, 1, 1, 1, 0),
    ("because of us", ["us"], 0, 1 / 2, 1, 1, 1),
    ("Paris,France", ["Paris"], 0, 0, 0, 1, 1),  # punctuation is dropped, not made a space
    ("well-known man", ["well known"], 0, 0, 0, 0, 1),
    ("Kristiania", ["Oslo", "Kristiania"], 1, 1, 1, 1, 1),
    ("in Kristiania now", ["Oslo", "Kristiania"], 0, 1 / 2, 1, 1, 1),
    ("Zürich", ["Zu\u0308rich"], 1, 1, 1, 1, 1),  # composed and decomposed
    ("Zürich", ["Zurich"], 0, 0, 0, 0, 0),
    ("Ærø and Fyn", ["ærø"], 0, 1 / 2, 1, 1, 1),
    ("東京", ["東京"], 1, 1, 1, 1, 1),
    ("“Oslo”", ["Oslo"], 0, 0, 0, 1, 1),  # SQuAD drops ASCII punctuation only
    ("oslo oslo oslo", ["oslo"], 0, 1 / 2, 1, 1, 1),
    ("new york", ["new york new york"], 0, 2 / 3, 0, 0, 1 / 2),
    ("", ["Oslo"], 0, 0, 0, 0, 0),
    ("Oslo", [""], 0, 0, 0, 0, 0),
    ("", [""], 1, 1, 1, 1, 1),
    ("The.", ["a"], 1, 1, 1, 1, 0),  # nothing is left of either, but ROUGE keeps articles
    ("anything", ["The The"], 0, 0, 0, 0, 0),  # nothing is left: it is not inside everything
    ("Oslo", ["the", "Oslo"], 1, 1, 1, 1, 1),
    ("bergen", ["the", "Oslo"], 0, 0, 0, 0, 0),
    ("1,000", ["1000"], 1, 1, 1, 1, 0),
    ("3.5", ["35"], 1, 1, 1, 1, 0),  # as published
    ("\tOslo \n Norway ", ["oslo norway"], 1, 1, 1, 1, 1),
    ("Norway Oslo", ["oslo norway"], 0, 1, 0, 0, 1),
    ("to be or not to be", ["not to"], 0, 1 / 2, 1, 1, 1),
    ("osloer", ["oslo"], 0, 0, 0, 1, 0),
]  # fmt: skip


@pytest.mark.parametrize("case", TABLE, ids=lambda case: f"{case[0]!r} for {case[1]}")
def test_hand_checked_cases(case):
    prediction, answers, *expected = case
    found = scores.score_all(prediction, answers)
    assert list(found) == [
        "exact_match",
        "token_f1",
        "containment",
        "substring_containment",
        "rouge1_recall",
    ]
    assert list(found.values()) == pytest.approx(expected, abs=0, rel=1e-15)


def test_without_a_right_answer_there_is_no_score():
    assert all(math.isnan(value) for value in scores.score_all("Oslo", []).values())
    with pytest.raises(SpecError, match=r"is one text: give a list, \['Oslo'\]"):
        scores.exact_match("Oslo", "Oslo")


def test_a_passage_holds_an_answer_as_whole_words():
    assert scores.holds("She was born in Oslo.", ["Bergen", "oslo"])
    assert not scores.holds("This is because of that.", ["us"])
    assert not scores.holds("Anything at all", ["the", ""])
    assert not scores.holds("Anything at all", [])
    with pytest.raises(SpecError, match=r"is one text: give a list, \['Oslo'\]"):
        scores.holds("Oslo", "Oslo")


HELD = [
    ("Einstein's theory", "Einstein"),
    ("Einstein\u2019s theory", "Einstein"),
    ("a Paris-based firm", "Paris"),
    ("He said \u201cOslo\u201d.", "Oslo"),
    ("He went to Oslo\u2014and stayed.", "Oslo"),
    ("Paris,France", "Paris"),
    ("the_anchor_log", "anchor"),
    ("the U.S.-led army", "US"),
    ("the US army", "U.S."),
    ("CocaCola and Coca Cola", "Coca-Cola"),
    ("Coca\u2011Cola", "Coca-Cola"),
    ("Conan O\u2019Brien spoke", "O'Brien"),
    ("Beatles' songs", "The Beatles"),
    ("It took 1,000 days.", "1000"),
    ("It took 1000 days.", "1,000"),
    ("born on 01.05.2020", "2020"),
    ("years 1969,1970", "1969"),
    ("it is 3.5 km", "3.5"),
    ("Zu\u0308rich\u2019s lake", "Z\u00fcrich"),
    ("in der Hauptstrasse", "Hauptstra\u00dfe"),
    ("\uff2f\uff53\uff4c\uff4f", "Oslo"),
    ("\u65e5\u672c\u306e\u9996\u90fd\u306f\u6771\u4eac\u3067\u3059", "\u6771\u4eac"),
    ("\u5f7c\u306fOslo\u306b\u3044\u308b", "Oslo"),
    ("\uc11c\uc6b8\uc740 \ud06c\ub2e4", "\uc11c\uc6b8"),
    ("New\nYork", "New York"),
    ("either yes or rain", "rain"),
]
NOT_HELD = [
    ("Osloer", "Oslo"),
    ("the paris", "par"),
    ("This is land.", "island"),
    ("20,000 leagues", "20"),
    ("1,000 days", "000"),
    ("it is 3.5 km", "5"),
    ("they won 2-1", "21"),
    ("in Oslo Norway", "Norway Oslo"),
    ("Vitamin C", "Vitamin A"),
    ("newyork", "new york"),
    ("\u0939\u093f\u0928\u094d\u0926\u0940", "\u0939"),  # a vowel sign belongs to its letter
    ("there is no wind", "no"),
    ("She said yes.", "\u201cYes\u201d"),
    ("what the crew did", "\u201cthe\u201d"),
    ("anything", "!?"),
]


@pytest.mark.parametrize(("text", "answer"), HELD, ids=lambda one: ascii(one))
def test_marks_part_words_and_may_be_lacking(text, answer):
    assert scores.holds(text, [answer])
    assert scores.holds(unicodedata.normalize("NFD", text), [answer])


@pytest.mark.parametrize(("text", "answer"), NOT_HELD, ids=lambda one: ascii(one))
def test_what_only_looks_like_the_answer_is_not_held(text, answer):
    assert not scores.holds(text, [answer])


pieces = st.lists(st.sampled_from(["oslo", "us", "x1", "-", " ", "'", "\u2014", "\u201c", "b"]))


@given(pieces.map("".join), st.sampled_from(["oslo", "us", "x1", "oslo us", "b-us", "b'us"]))
def test_holding_against_a_walk_over_places(text, answer):
    """Letters that begin and end at an edge, with nothing but marks between those of one word."""

    def here(at):
        gap = ""
        for letter in answer:
            if not letter.isalnum():
                gap += letter
                continue
            start = at
            while at < len(text) and not text[at].isalnum():
                at += 1
            skipped = text[start:at]
            if (" " in gap and not skipped) or (not gap and " " in skipped):
                return False
            if at == len(text) or text[at] != letter:
                return False
            at, gap = at + 1, ""
        return at == len(text) or not text[at].isalnum()

    starts = [at for at in range(len(text)) if text[at].isalnum()]
    edges = [at for at in starts if at == 0 or not text[at - 1].isalnum()]
    assert scores.holds(text, [answer]) == any(here(at) for at in edges)


texts = st.text(max_size=30)
some = st.lists(texts, min_size=1, max_size=3)


@given(texts, some)
def test_scores_are_shares_and_ordered(prediction, answers):
    found = scores.score_all(prediction, answers)
    assert all(0 <= value <= 1 for value in found.values())
    assert found["exact_match"] <= found["containment"] <= found["substring_containment"]
    assert found["exact_match"] <= found["token_f1"]


@given(texts, some, texts)
def test_an_answer_more_never_costs(prediction, answers, other):
    left = [one for one in answers if scores.normalise_text(one)]
    assume(left)  # of nothing alone, another answer takes its place
    before, after = (scores.score_all(prediction, one) for one in (left, [*left, other]))
    for name in scores.SCORES:
        if name != "rouge1_recall":
            assert after[name] >= before[name], name


@given(texts)
def test_normalising_twice_changes_little_and_spelling_nothing(text):
    once = scores.normalise_text(text)
    assert once == " ".join(once.split())
    assert not set(once) & set(string.punctuation)
    assert scores.normalise_text(unicodedata.normalize("NFD", text)) == scores.normalise_text(
        unicodedata.normalize("NFC", text)
    )


def slow_f1(prediction, answer):
    """Word by word: each word of the prediction uses up one of the answer."""
    said, right = scores.normalise_text(prediction).split(), scores.normalise_text(answer).split()
    if not said or not right:
        return float(said == right)
    left, met = list(right), 0
    for word in said:
        if word in left:
            left.remove(word)
            met += 1
    return 0.0 if not met else 2 * met / (len(said) + len(right))


words = st.lists(st.sampled_from(["the", "Oslo", "a", "us.", "bus", "Lena's", "is"]), max_size=8)
sentences = words.map(" ".join)


@given(sentences, st.lists(sentences, min_size=1, max_size=3))
def test_f1_against_its_slow_twin(prediction, answers):
    right = [one for one in answers if scores.normalise_text(one)] or answers[:1]
    expected = max(slow_f1(prediction, answer) for answer in right)
    assert scores.token_f1(prediction, answers) == pytest.approx(expected, rel=1e-12)


@given(sentences, sentences)
def test_whole_words_against_a_walk_over_places(prediction, answer):
    said, right = scores.normalise_text(prediction).split(), scores.normalise_text(answer).split()
    places = range(len(said) - len(right) + 1)
    there = any(said[at : at + len(right)] == right for at in places) if right else not said
    assert scores.containment(prediction, [answer]) == float(there)


ascii_text = st.text(st.sampled_from(string.ascii_letters + " .,'_-019"), max_size=40)


@given(ascii_text, ascii_text)
def test_rouge_agrees_with_the_published_package(prediction, answer):
    # the package gives 0 where there is nothing to recall
    assume(any(letter.isalnum() for letter in answer))
    scorer = rouge_scorer.RougeScorer(["rouge1"], use_stemmer=False)
    published = scorer.score(answer, prediction)["rouge1"].recall
    assert scores.rouge1_recall(prediction, [answer]) == pytest.approx(published, rel=1e-12)
