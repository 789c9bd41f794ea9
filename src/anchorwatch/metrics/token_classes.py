"""What a token is: one class for each position of a canvas, decided from the decoded text.

A merged token counts by the character that says most: a letter, else a digit, else a line break,
else a mark, else a space. So ".\\n\\n" is a newline, ' ,"' punctuation and ".5" a digit. Pieces of
a word share its class: "the" + "ory" is content. Tokens are those of the canvas at the frame, so a
masked position is a mask whatever will stand there.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.trace.trace import MISSING, Trace
from anchorwatch.trace.trace import SPECIAL as SPECIAL_ROLE

CLASSES = (
    *("mask", "newline", "space", "punctuation", "special", "end", "digit"),
    *("function word", "template", "content", "answer-bearing"),
)
MASK, NEWLINE, SPACE, PUNCTUATION, SPECIAL, END, DIGIT, FUNCTION, TEMPLATE, CONTENT, EVIDENCE = (
    range(len(CLASSES))
)
STRUCTURE = (NEWLINE, SPACE, PUNCTUATION, SPECIAL, END, FUNCTION, TEMPLATE)
"""Classes that hold a text together; a mask is neither structure nor content."""
MEANING = (DIGIT, CONTENT, EVIDENCE)
"""Classes that a text is about."""

FUNCTION_WORDS = frozenset(
    """
    a an the this that these those each every either neither some any no none all both few many much
    more most other another such what which whose
    i me my mine myself you your yours yourself yourselves he him his himself she her hers herself
    it its itself we us our ours ourselves they them their theirs themselves one who whom
    somebody someone something anybody anyone anything nobody nothing everybody everyone everything
    whoever whatever whichever
    am is are was were be been being have has had having do does did doing
    can could may might must shall should will would ought cannot
    of in on at by for with about against between among into onto through during before after above
    below to from up down out off over under near since until till upon within without across along
    around behind beside beyond despite except inside outside per than toward towards via
    and or but nor so yet if because as while although though unless whereas whether
    when where why how then there here not too very just also only again once even still
    """.split()
)
"""English words of the closed classes; words of other languages are content."""

_CLITICS = frozenset(("s", "t", "re", "ve", "ll", "d", "m"))
_NEGATED = frozenset(("ca", "wo", "sha", "ai"))
_WORD = re.compile("[\\w\u0300-\u036f]+(?:['’][\\w\u0300-\u036f]+)*")
_JOINS = re.compile("[\\w\u0300-\u036f'’]")
_LOOKS_SPECIAL = re.compile(
    r"<\|[^<>|\s]{1,80}\|>|</?(?:s|pad|unk|bos|eos|cls|sep|mask|(?:start|end)_of_turn)>"
    r"|\[(?:CLS|SEP|PAD|UNK|MASK|BOS|EOS)\]",
    re.IGNORECASE,
)
_ENDS = re.compile(
    r"</s>|<eos>|<end_of_turn>|\[(?:SEP|EOS)\]"
    r"|<\|(?:endoftext|end_of_text|eot_id|eot|im_end|role_end|end|eos|end_of_turn)\|>",
    re.IGNORECASE,
)
_NEWLINES = frozenset("\n\r\v\f\x85\u2028\u2029")
_LETTER, _DIGIT, _BREAK, _MARK, _BLANK, _SILENT = range(5, -1, -1)
"""How much a character says."""


def classes(
    trace: Trace, frame: int = -1, *, template: Sequence[str] = (), evidence: Sequence[str] = ()
) -> np.ndarray:
    """[position] index into CLASSES of the tokens of a frame; -1 where a position is absent.

    `template` is boilerplate of the prompt: texts that stand in it, or names of regions. `evidence`
    names regions whose content and digits are answer-bearing.
    """
    if not -len(trace.canvas) <= frame < len(trace.canvas):
        raise SpecError(f"frame {frame} is not in the trace: it has 0 to {len(trace.canvas) - 1}")
    placed = MarkedPositions([trace], template, evidence)
    return _Vocabulary(trace).classes(trace.canvas[[frame]], *placed.of(trace))[0]


def step_classes(
    trace: Trace, *, template: Sequence[str] = (), evidence: Sequence[str] = ()
) -> np.ndarray:
    """[step, position] index into CLASSES of the canvas each step looked at; -1 where absent."""
    return classify_steps(trace, *MarkedPositions([trace], template, evidence).of(trace))


def classify_steps(trace: Trace, boilerplate: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """[step, position] index into CLASSES, given where boilerplate and evidence stand."""
    return _Vocabulary(trace).classes(trace.canvas[:-1], boilerplate, evidence)


def token_class(token_id: int, text: str, model: Mapping[str, object]) -> int:
    """Index into CLASSES of one token by itself, given what a manifest says of its model."""
    special = model.get("special_ids")
    index = _context_free_class(
        token_id, text, dict(model), set(special if isinstance(special, list) else ())
    )
    return _spelled_classes([(text, None)])[0] if index == MISSING else index


def token_names(trace: Trace) -> dict[int, str]:
    """The texts of the trace's tokens; half a character, which has none, is named by its bytes."""
    manifest = trace.manifest
    split = {i: f"<0x{raw.upper()}>" for i, raw in manifest.get("token_bytes", {}).items()}
    return {int(i): text for i, text in (manifest["tokens"] | split).items()}


class MarkedPositions:
    """Where boilerplate and evidence stand; a name that no trace knows is refused."""

    def __init__(
        self, traces: Sequence[Trace], template: Sequence[str], evidence: Sequence[str]
    ) -> None:
        for name, given in (("template", template), ("evidence", evidence)):
            if isinstance(given, str):
                raise SpecError(f"{name}={given!r} is not a list: say [{given!r}]")
        self._template, self._evidence = tuple(template), tuple(evidence)
        for text in template:
            if not any(self._boilerplate(trace, text).any() for trace in traces):
                raise SpecError(
                    f"the template {text!r} stands in no prompt: give texts exactly as they stand "
                    f"there{_or_regions(traces)}"
                )
        for name in evidence:
            if not any(name in trace.manifest["regions"] for trace in traces):
                raise SpecError(
                    f"no trace has the region {name!r} to take as evidence: "
                    f"run(..., regions={{{name!r}: (0, 42)}}) names one{_or_regions(traces)}"
                )

    def of(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        """([position] boilerplate, [position] evidence), bool."""
        nowhere = np.zeros(trace.canvas.shape[1], dtype=bool)
        boilerplate, evidence = nowhere.copy(), nowhere.copy()
        for text in self._template:
            boilerplate |= self._boilerplate(trace, text)
        for name in self._evidence:
            evidence |= _region(trace, name)
        return boilerplate, evidence

    @staticmethod
    def _boilerplate(trace: Trace, text: str) -> np.ndarray:
        if text in trace.manifest["regions"]:
            return _region(trace, text)
        marked = np.zeros(trace.canvas.shape[1], dtype=bool)
        if not text.strip():
            return marked
        given = np.setdiff1d(np.arange(len(marked)), trace.answer)
        split = trace.manifest.get("token_bytes", {})
        # Text is searched in each stretch of given positions, never across a gap.
        for stretch in np.split(given, np.flatnonzero(np.diff(given) > 1) + 1):
            ids = trace.canvas[0, stretch].tolist()
            spelled, owners = _characters([(trace.token(i), split.get(str(i))) for i in ids])
            for match in re.finditer(re.escape(text), spelled):
                tokens = [
                    owners[index] for index in range(*match.span()) if not spelled[index].isspace()
                ]
                marked[[stretch[i] for owner in tokens for i in owner]] = True
        return marked


class _Vocabulary:
    """The tokens of one trace, each classified once; runs of pieces as they are met."""

    def __init__(self, trace: Trace) -> None:
        manifest = trace.manifest
        model, split = manifest["model"], manifest.get("token_bytes", {})
        if "tokenizer" in model and model["tokenizer"] is None:
            raise TraceError(
                f"{model['source']} was run without a tokenizer, so its trace knows ids and no "
                "texts: token classes are read from text, load the model with its tokenizer"
            )
        # 1. Every id of the canvas once.
        self._ids = np.unique(trace.canvas[trace.canvas != MISSING])
        ids = self._ids.tolist()
        self._pieces = [(trace.token(i), split.get(str(i))) for i in ids]
        # 2. Classes that an id has by itself: mask, end, special.
        special = {
            *model.get("special_ids", ()),
            *np.unique(trace.canvas[trace.role == SPECIAL_ROLE]),
        }
        self._own = np.array(
            [
                _context_free_class(i, text, model, special)
                for i, (text, _) in zip(ids, self._pieces, strict=True)
            ]
        )
        self._runs: dict[tuple[int, ...], list[int]] = {}
        # 3. The others are read as text; some may join their neighbours into one word.
        loose = self._own < 0
        self._starts = loose & [_joins(piece, 0) for piece in self._pieces]
        self._ends = loose & [_joins(piece, -1) for piece in self._pieces]
        self._own[loose] = [
            self._classify_run((index,))[0] for index in np.flatnonzero(loose).tolist()
        ]

    def classes(
        self, canvas: np.ndarray, boilerplate: np.ndarray, evidence: np.ndarray
    ) -> np.ndarray:
        """[frame, position] of token ids [frame, position]."""
        exists = canvas != MISSING
        index = np.searchsorted(self._ids, np.where(exists, canvas, self._ids[0]))
        classes = np.where(exists, self._own[index], MISSING).astype(np.int8)
        # Neighbours that join form a run, whose pieces share the class of the word.
        joined = self._ends[index[:, :-1]] & self._starts[index[:, 1:]]
        joined &= exists[:, :-1] & exists[:, 1:]
        for frame, (first, last) in _stretches(joined):
            run = tuple(index[frame, first : last + 1].tolist())
            classes[frame, first : last + 1] = self._classify_run(run)
        # Marks of the prompt come last, and never over what an id is by itself.
        fixed = (MASK, SPECIAL, END, MISSING)
        classes[evidence & np.isin(classes, (CONTENT, DIGIT))] = EVIDENCE
        classes[boilerplate & ~np.isin(classes, fixed)] = TEMPLATE
        return classes

    def _classify_run(self, run: tuple[int, ...]) -> list[int]:
        if run not in self._runs:
            self._runs[run] = _spelled_classes([self._pieces[index] for index in run])
        return self._runs[run]


def _joins(piece: tuple[str, str | None], index: int) -> bool:
    """Whether a token's first or last character may go on in its neighbour."""
    text, raw = piece
    return raw is not None or bool(text and _JOINS.match(text[index]))


def _context_free_class(
    token_id: int, text: str, model: dict[str, object], special: set[int]
) -> int:
    """The class that an id has whatever stands around it; -1 where its text decides."""
    if token_id == model.get("mask_id"):
        return MASK
    ends = model.get("end_ids")  # early traces do not name them, nor do some checkpoints
    if token_id in ends if ends and isinstance(ends, list) else _ENDS.fullmatch(text):
        return END
    return SPECIAL if token_id in special or _LOOKS_SPECIAL.fullmatch(text) else MISSING


def _spelled_classes(pieces: Sequence[tuple[str, str | None]]) -> list[int]:
    """Classes of neighbouring tokens, (text, hex of bytes that are no whole text) each."""
    text, owners = _characters(pieces)
    grammar = _grammatical(text)
    # A token is what its most telling character is.
    says, meant = [_SILENT] * len(pieces), [False] * len(pieces)
    for index, char in enumerate(text):
        kind = _says(char)
        for token in owners[index]:
            says[token] = max(says[token], kind)
            meant[token] |= kind == _LETTER and not grammar[index]
    named = {_DIGIT: DIGIT, _BREAK: NEWLINE, _MARK: PUNCTUATION, _BLANK: SPACE}
    empty = [not raw and not text for text, raw in pieces]
    named_words = [CONTENT if has_meaning else FUNCTION for has_meaning in meant]
    return [
        SPACE if none else CONTENT if most == _SILENT else named.get(most, word)
        for none, most, word in zip(empty, says, named_words, strict=True)
    ]


def _grammatical(text: str) -> np.ndarray:
    """[character] bool: whether it stands in a function word, or in the 's of another word."""
    grammatical = np.zeros(len(text), dtype=bool)
    for match in _WORD.finditer(text):
        word = match[0].lower().replace("’", "'")
        stem = word.removesuffix("n't")
        if word in FUNCTION_WORDS or (stem != word and stem in FUNCTION_WORDS | _NEGATED):
            grammatical[match.start() : match.end()] = True
            continue
        start = match.start()
        for rank, part in enumerate(re.split("['’]", match[0])):
            grammatical[start : start + len(part)] = part.lower() in (
                _CLITICS if rank else FUNCTION_WORDS
            )
            start += len(part) + 1
    return grammatical


def _characters(pieces: Sequence[tuple[str, str | None]]) -> tuple[str, list[range]]:
    """The text of neighbouring tokens, and the tokens that each of its characters stands in."""
    text, owners = "", []
    raw, holders = b"", list[int]()
    # Bytes of several tokens may be one character, which then belongs to all of them.
    for token, (spelled, split) in enumerate([*pieces, ("", None)]):
        if split is not None:
            part = bytes.fromhex(split)
            raw, holders = raw + part, holders + [token] * len(part)
            continue
        offset = 0
        while offset < len(raw):
            char, size = _first_character(raw[offset : offset + 4])
            text += char
            owners.append(range(holders[offset], holders[offset + size - 1] + 1))
            offset += size
        raw, holders = b"", []
        text += spelled
        owners += [range(token, token + 1)] * len(spelled)
    return text, owners


def _first_character(raw: bytes) -> tuple[str, int]:
    """The character some bytes begin with, and how many are its; a lone byte is U+FFFD."""
    for size in range(1, len(raw) + 1):
        try:
            return raw[:size].decode("utf-8"), size
        except UnicodeDecodeError:
            continue
    return "\ufffd", 1


@cache
def _says(char: str) -> int:
    """By Unicode category; pictures (emoji) are read as letters, accents take on what they join."""
    if char in _NEWLINES:
        return _BREAK
    kind = unicodedata.category(char)
    if kind[0] == "M":
        return _SILENT
    if kind[0] in "ZC" and kind not in ("Co", "Cn"):
        return _BLANK
    if kind[0] == "P" or (kind in ("Sm", "Sc", "Sk") and not "🏻" <= char <= "🏿"):
        return _MARK
    return _DIGIT if kind[0] == "N" else _LETTER


def _stretches(joined: np.ndarray) -> list[tuple[int, tuple[int, int]]]:
    """(row, (first, last) position) of runs in which each position is joined to the next."""
    rows, width = joined.shape
    edges = np.zeros((rows, width + 2), dtype=np.int8)
    edges[:, 1:-1] = joined
    turns = np.argwhere(np.diff(edges, axis=1))
    return [
        (int(row), (int(first), int(last)))
        for (row, first), (_, last) in list(pairwise(turns.tolist()))[::2]
    ]


def _region(trace: Trace, name: str) -> np.ndarray:
    names = trace.manifest["regions"]
    return trace["region"].values == (names.index(name) if name in names else MISSING - 1)


def _or_regions(traces: Sequence[Trace]) -> str:
    names = list(dict.fromkeys(name for trace in traces for name in trace.manifest["regions"]))
    return f", or name a region: {', '.join(names)}" if names else ""
