"""What an answer is worth: exact match, token F1, containment in two forms, ROUGE-1 recall.

All are the best over several right answers, from 0 to 1, and NaN where there is no right answer to
compare with. Words are SQuAD's: lower case, ASCII punctuation dropped (not made a space), without
a, an, the. As in SQuAD 2.0 a right answer of which nothing is left counts only where all are so,
and then nothing is what must be said.

>>> containment("He lives because of it.", ["us"]), substring_containment("because", ["us"])
(0.0, 1.0)
>>> exact_match("The Oslo!", ["Oslo", "Kristiania"]), token_f1("in Oslo", ["Oslo"])
(1.0, 0.6666666666666666)
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

from anchorwatch.errors import SpecError

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WORD = re.compile(r"[^\W_]+")


def normalised(text: str) -> str:
    """SQuAD's form of a text; two spellings of one Unicode text (NFC, NFD) become one.

    >>> normalised("The U.S.,  a  nation")
    'us nation'
    """
    plain = unicodedata.normalize("NFC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 where the normalised texts are equal."""
    return _best(prediction, answers, lambda said, right: float(said == right))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of words, each counted as often as it stands there."""
    return _best(prediction, answers, _f1)


def containment(prediction: str, answers: Sequence[str]) -> float:
    """1 where a right answer stands in the prediction as whole words in a row."""
    return _best(prediction, answers, lambda said, right: _inside(f" {right} ", f" {said} ", right))


def substring_containment(prediction: str, answers: Sequence[str]) -> float:
    """1 where its letters stand in the prediction in a row: the papers' accuracy, lenient."""
    return _best(prediction, answers, lambda said, right: _inside(right, said, right))


def rouge1_recall(prediction: str, answers: Sequence[str]) -> float:
    """Share of a right answer's words that were said; articles count, punctuation parts words."""
    return _best(prediction, answers, _recall, normal=_worded)


SCORES: dict[str, Callable[[str, Sequence[str]], float]] = {
    function.__name__: function
    for function in (exact_match, token_f1, containment, substring_containment, rouge1_recall)
}
BINARY = ("exact_match", "containment", "substring_containment")
"""Scores that are right or wrong, which McNemar's test takes."""


def score_all(prediction: str, answers: Sequence[str]) -> dict[str, float]:
    """Every score by its name."""
    return {name: function(prediction, answers) for name, function in SCORES.items()}


def holds(text: str, answers: Sequence[str]) -> bool:
    """Whether a text holds an answer as whole words; an answer that is nothing it never holds."""
    said = f" {normalised(text)} "
    return any(f" {right} " in said for answer in answers if (right := normalised(answer)))


def _best(
    prediction: str,
    answers: Sequence[str],
    compare: Callable[[str, str], float],
    normal: Callable[[str], str] = normalised,
) -> float:
    if isinstance(answers, str):
        raise SpecError(f"answers={answers!r:.40} is one text: give a list, [{answers!r:.40}]")
    said, right = normal(prediction), [normal(answer) for answer in answers]
    # nothing is right only where every answer is nothing: it would stand inside of everything
    right = [one for one in right if one] or right[:1]
    return max((compare(said, one) for one in right), default=float("nan"))


def _inside(part: str, whole: str, right: str) -> float:
    return float(part in whole if right else not whole.strip())


def _f1(said: str, right: str) -> float:
    one, other = said.split(), right.split()
    if not one or not other:
        return float(one == other)
    shared = sum((Counter(one) & Counter(other)).values())
    precision, recall = shared / len(one), shared / len(other)
    return 2 * precision * recall / (precision + recall) if shared else 0.0


def _worded(text: str) -> str:
    return " ".join(_WORD.findall(unicodedata.normalize("NFC", text).lower()))


def _recall(said: str, right: str) -> float:
    one, other = said.split(), right.split()
    if not other:
        return float(not one)
    return sum((Counter(one) & Counter(other)).values()) / len(other)
