"""What an answer is worth: exact match, token F1, containment in two forms, ROUGE-1 recall.

All are the best over several right answers, from 0 to 1, and NaN where there is no right answer to
compare with. Words are SQuAD's: lower case, ASCII punctuation dropped (not made a space), without
a, an, the. As in SQuAD 2.0 a right answer of which nothing is left counts only where all are so,
and then nothing is what must be said. `holds`, which finds evidence and distractors, is no score
and has a rule of its own: SQuAD's words miss `Einstein's`.

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
from functools import lru_cache

from anchorwatch.errors import SpecError

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WORD = re.compile(r"[^\W_]+")
_MARKED = re.compile(r"(?<![\d.,])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![.,]?\d)|[^\w\s]|_")
"""A number with its comma and point, or a mark."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Letters of scripts that do not part words, or that join particles to them."""


def normalise_text(text: str) -> str:
    """SQuAD's form of a text; two spellings of one Unicode text (NFC, NFD) become one.

    >>> normalise_text("The U.S.,  a  nation")
    'us nation'
    """
    plain = unicodedata.normalize("NFC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 where the normalised texts are equal."""
    return _best_score(prediction, answers, lambda predicted, right: float(predicted == right))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of words, each counted as often as it stands there."""
    return _best_score(prediction, answers, _f1)


def containment(prediction: str, answers: Sequence[str]) -> float:
    """1 where a right answer stands in the prediction as whole words in a row."""
    return _best_score(
        prediction,
        answers,
        lambda predicted, right: _contains(f" {right} ", f" {predicted} ", right),
    )


def substring_containment(prediction: str, answers: Sequence[str]) -> float:
    """1 where its letters stand in the prediction in a row: the papers' accuracy, lenient."""
    return _best_score(
        prediction, answers, lambda predicted, right: _contains(right, predicted, right)
    )


def rouge1_recall(prediction: str, answers: Sequence[str]) -> float:
    """Share of a right answer's words that were said; articles count, punctuation parts words."""
    return _best_score(prediction, answers, _recall, normal=_strip_articles)


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
    """Whether a text holds an answer as whole words, or as letters where a script parts no words.

    Every mark parts words, yet may be lacking inside of one: U.S. holds US, and Paris-based Paris.
    A text never holds an answer that is nothing, nor yes and no, which are words of any text.

    >>> holds("Einstein\u2019s theory", ["Einstein"]), holds("20,000 leagues", ["20"])
    (True, False)
    """
    if isinstance(answers, str):
        raise SpecError(f"answers={answers!r:.40} is one text: give a list, [{answers!r:.40}]")
    forms = [form for answer in answers if (form := _answer_pattern(answer))]
    spelled = _normalise_spelling(text) if forms else ""
    return any(form.search(spelled) for form in forms)


def _normalise_spelling(text: str) -> str:
    """Letters without case, spaces, and a hyphen for every mark that is not part of a number."""
    return _MARKED.sub(_replace_mark, unicodedata.normalize("NFKC", text).casefold())


def _replace_mark(mark: re.Match[str]) -> str:
    if mark[0][0].isdigit():
        return mark[0].replace(",", "")
    return mark[0] if unicodedata.category(mark[0]).startswith("M") else "-"  # accents stay


@lru_cache(maxsize=1024)
def _answer_pattern(answer: str) -> re.Pattern[str] | None:
    """What matches an answer in a spelled text; None where nothing telling is left of it."""
    plain = re.sub(r"^[\s-]*(?:(?:an?|the)\s[\s-]*)*|[\s-]+$", "", _normalise_spelling(answer))
    if plain in ("", "a", "an", "the", "yes", "no"):
        return None
    words = re.split(r"([\s-]+)", plain)
    for index in range(0, len(words), 2):
        words[index] = "-*".join(map(re.escape, re.findall(r"\d[\d.]*|.", words[index])))
    for index in range(1, len(words), 2):  # what a mark alone parts, may also be joined
        words[index] = r"[\s-]" + ("+" if re.search(r"\s", words[index]) else "*")
    edge = rf"[^\s\-{_UNSPACED}]"
    before = "" if re.match(f"[{_UNSPACED}]", plain) else f"(?<!{edge})"
    after = "" if re.search(f"[{_UNSPACED}]$", plain) else f"(?!{edge})"
    return re.compile(before + "".join(words) + after)


def _best_score(
    prediction: str,
    answers: Sequence[str],
    compare: Callable[[str, str], float],
    normal: Callable[[str], str] = normalise_text,
) -> float:
    if isinstance(answers, str):
        raise SpecError(f"answers={answers!r:.40} is one text: give a list, [{answers!r:.40}]")
    predicted, right = normal(prediction), [normal(answer) for answer in answers]
    # nothing is right only where every answer is nothing: it would stand inside of everything
    right = [text for text in right if text] or right[:1]
    return max((compare(predicted, text) for text in right), default=float("nan"))


def _contains(part: str, whole: str, right: str) -> float:
    return float(part in whole if right else not whole.strip())


def _f1(predicted: str, right: str) -> float:
    words, right_words = predicted.split(), right.split()
    if not words or not right_words:
        return float(words == right_words)
    shared = sum((Counter(words) & Counter(right_words)).values())
    precision, recall = shared / len(words), shared / len(right_words)
    return 2 * precision * recall / (precision + recall) if shared else 0.0


def _strip_articles(text: str) -> str:
    return " ".join(_WORD.findall(unicodedata.normalize("NFC", text).lower()))


def _recall(predicted: str, right: str) -> float:
    words, right_words = predicted.split(), right.split()
    if not right_words:
        return float(not words)
    return sum((Counter(words) & Counter(right_words)).values()) / len(right_words)
