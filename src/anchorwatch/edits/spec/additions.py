"""Additions to the network: sink tokens and their relatives, registers, gates.

An addition is an edit when a run is given it, and belongs to the model when it was trained with it.
What it adds before the canvas (sinks, logits, biases, registers) are its columns: every query sees
them. `models` computes with them during a pass; this file says what they are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from anchorwatch.edits.spec.edit import Edit, check_seed, check_word, register_edit
from anchorwatch.errors import SpecError

POSITIONS = ("front", "end")
EMBEDDINGS = ("mean", "start", "mask", "random")
VALUES = ("own", "zero")
BIASES = ("random", "zero")
GATE_FORMS = ("elementwise", "headwise")
GATE_STARTS = ("identity", "plain")


@dataclass(frozen=True)
class Numbers:
    """Numbers too many for a manifest, known by their digest."""

    digest: str
    array: np.ndarray | None = dataclasses.field(default=None, compare=False)
    """float32; None where only a manifest is left."""

    @classmethod
    def of(cls, array: np.ndarray) -> Numbers:
        numbers = np.array(array, dtype=np.float32, order="C")
        # A frozen value whose digest is known must not change.
        numbers.flags.writeable = False
        # The shape is part of the digest: [2, 3] and [3, 2] hold the same bytes.
        head = str(list(numbers.shape)).encode()
        return cls(hashlib.sha256(head + numbers.tobytes()).hexdigest(), numbers)

    def __repr__(self) -> str:
        return f"<numbers {self.digest[:8]}>"


@dataclass(frozen=True, repr=False)
class Addition(Edit):
    """Something added to the network."""

    observable: ClassVar[str] = "the output of heads that see what it adds"

    @property
    def columns(self) -> int:
        """Keys it adds before the canvas."""
        return 0

    @property
    def lacks(self) -> str | None:
        """The field of which only a digest is known, so that it cannot run."""
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, Numbers) and value.array is None:
                return setting.name
        return None

    @property
    def has_zero_value(self) -> bool:
        """Whether the values of the keys it adds are zero, which is verified during a pass."""
        return False

    @property
    def is_query(self) -> bool:
        """Whether what it adds stands in the sequence as a token that sees the others."""
        return False

    @property
    def everywhere(self) -> Addition:
        """The same part without its times: what it is made of does not depend on them."""
        return dataclasses.replace(self, steps=None, progress=None)

    def _set_field(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True, repr=False)
class _Token(Addition):
    """Parts that stand in the sequence, and so in every layer and head."""

    n: int = 1
    _: KW_ONLY
    embedding: Any = "mean"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = type(self).__name__
        for name in ("layers", "heads"):
            if getattr(self, name) is not None:
                raise SpecError(
                    f"a {kind} is a token and stands in every layer and head: leave {name} out, "
                    "or use kv_bias"
                )
        self._set_field("n", _check_count(self.n))
        self._set_field("seed", check_seed(self.seed))
        embedding = _numbers("embedding", self.embedding, EMBEDDINGS)
        if isinstance(embedding, Numbers) and embedding.array is not None:
            # One vector stands for one token.
            if embedding.array.ndim == 1:
                embedding = Numbers.of(embedding.array[None])
            _check_rows(kind, embedding.array, self.n)  # type: ignore[arg-type]
        self._set_field("embedding", embedding)

    @property
    def columns(self) -> int:
        return self.n


@register_edit
@dataclass(frozen=True, repr=False)
class sink_token(_Token):  # noqa: N801
    """`n` tokens that everyone sees and that see only themselves (one token is enough).

    `embedding` is "mean" (of all tokens), "start", "mask", "random" (`seed`), or numbers
    [n, width]. `position` is where rotary positions think they are, before the first token or after
    the last; with `rotary=False` their logits depend on no position. `value="zero"` empties their
    values in every layer.
    """

    _: KW_ONLY
    position: str = "front"
    value: str = "own"
    rotary: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word("position", self.position, POSITIONS)
        check_word("value", self.value, VALUES)
        if not isinstance(self.rotary, bool):
            raise SpecError(f"rotary={self.rotary!r} is neither True nor False")
        if not self.rotary and self.position != "front":
            raise SpecError("with rotary=False a sink token stands nowhere: leave position out")

    @property
    def has_zero_value(self) -> bool:
        return self.value == "zero"


@register_edit
@dataclass(frozen=True, repr=False)
class register(_Token):  # noqa: N801
    """`n` ordinary extra tokens before the first that see everything and are seen by everyone."""

    @property
    def is_query(self) -> bool:
        return True


@register_edit
@dataclass(frozen=True, repr=False)
class off_by_one(Addition):  # noqa: N801
    """One more in the softmax's denominator: a key with logit 0 and value 0."""

    @property
    def columns(self) -> int:
        return 1

    @property
    def has_zero_value(self) -> bool:
        return True


@register_edit
@dataclass(frozen=True, repr=False)
class sink_logit(Addition):  # noqa: N801
    """A key with value 0 and this logit: a number, one for each head, or for each layer a list."""

    logit: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        logit = -np.inf if isinstance(self.logit, str) and self.logit == "-inf" else self.logit
        if isinstance(logit, int | float | np.number) and not isinstance(logit, bool):
            if np.isnan(logit) or logit == np.inf:
                raise SpecError(f"logit={logit} is no logit: say a number, or -inf for none at all")
            self._set_field("logit", float(logit))
            return
        logit = _numbers("logit", logit, ())
        if logit.array is not None and logit.array.ndim not in (1, 2):
            raise SpecError(
                f"logit has shape {list(logit.array.shape)}: expected [heads] or [layers, heads]"
            )
        self._set_field("logit", logit)

    @property
    def columns(self) -> int:
        return 1

    @property
    def has_zero_value(self) -> bool:
        return True

    def as_dict(self) -> dict[str, Any]:
        """JSON knows no infinity: -inf is written as a word."""
        fields = super().as_dict()
        return fields | ({"logit": "-inf"} if fields["logit"] == -np.inf else {})


@register_edit
@dataclass(frozen=True, repr=False)
class kv_bias(Addition):  # noqa: N801
    """`n` keys and values of each layer's own: "random" (0.02 wide), "zero", or numbers.

    Numbers are [layers, key heads, n, channels], keys as they are after rotary positions.
    """

    n: int = 1
    _: KW_ONLY
    key: Any = "random"
    value: Any = "random"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_field("n", _check_count(self.n))
        self._set_field("seed", check_seed(self.seed))
        for name in ("key", "value"):
            bias = _numbers(name, getattr(self, name), BIASES)
            # A word or a digest has no shape: it passes for the right one.
            shape = getattr(getattr(bias, "array", None), "shape", (0, 0, self.n, 0))
            if len(shape) != 4 or shape[2] != self.n:
                raise SpecError(
                    f"{name} has shape {list(shape)}: "
                    f"expected [layers, key heads, n = {self.n}, channels]"
                )
            self._set_field(name, bias)

    @property
    def columns(self) -> int:
        return self.n


@register_edit
@dataclass(frozen=True, repr=False)
class gate(Addition):  # noqa: N801
    """Attention's output times sigmoid(x W) before its projection, x what attention reads.

    "elementwise" has a number for each channel, "headwise" one for each head. `init="identity"`
    doubles the sigmoid and begins with W = 0, so that it begins as exactly 1; "plain" draws W from
    N(0, 2 / (5 width)) and begins near one half. `weight` is W, [layers, outputs, width].
    """

    form: str = "elementwise"
    init: str = "identity"
    _: KW_ONLY
    weight: Any = None
    seed: int = 0

    observable: ClassVar[str] = "what the output projection reads"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word("form", self.form, GATE_FORMS)
        check_word("init", self.init, GATE_STARTS)
        self._set_field("seed", check_seed(self.seed))
        if self.weight is not None:
            weight = _numbers("weight", self.weight, ())
            if weight.array is not None and weight.array.ndim != 3:
                shape = list(weight.array.shape)
                raise SpecError(f"weight has shape {shape}: expected [layers, outputs, width]")
            self._set_field("weight", weight)


def additions_among(edits: Iterable[Edit]) -> tuple[Addition, ...]:
    """Those of some edits that are additions to the network."""
    return tuple(edit for edit in edits if isinstance(edit, Addition))


def restore_numbers(edits: Iterable[Edit], given: Iterable[Edit]) -> tuple[Edit, ...]:
    """Edits as a manifest has them, with the numbers that equal digests have in `given`."""
    # By digest: a manifest knows nothing else of them.
    known = {
        value.digest: value
        for edit in given
        for value in vars(edit).values()
        if isinstance(value, Numbers) and value.array is not None
    }
    restored = []
    for edit in edits:
        numbers: dict[str, Any] = {
            name: known[value.digest]
            for name, value in vars(edit).items()
            if isinstance(value, Numbers) and value.digest in known
        }
        restored.append(dataclasses.replace(edit, **numbers) if numbers else edit)
    return tuple(restored)


def _numbers(name: str, value: Any, words: tuple[str, ...]) -> Any:
    """A word as it is, anything like an array as numbers, a digest as numbers that are missing."""
    if isinstance(value, Numbers) or (isinstance(value, str) and value in words):
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        return Numbers(value)
    wrong = SpecError(
        f"{name}={value!r:.40} is unknown: expected " + ", ".join([*words, "or numbers"])
    )
    if isinstance(value, str) or value is None:
        raise wrong
    try:
        plain = value.detach().cpu().float().numpy() if hasattr(value, "detach") else value
        array = np.asarray(plain, dtype=np.float32)
    except (TypeError, ValueError):
        raise wrong from None
    # A logit of -inf is a head that does not see the addition.
    fine = np.isfinite(array) | ((array == -np.inf) if name == "logit" else False)
    if not array.ndim or not array.size or not fine.all():
        raise SpecError(f"{name} is empty or holds NaN or infinity: expected finite numbers")
    return Numbers.of(array)


def _check_rows(kind: str, array: np.ndarray, n: int) -> None:
    if array.ndim != 2 or array.shape[0] != n:
        raise SpecError(
            f"{kind}(n={n}) has an embedding of shape {list(array.shape)}: expected [{n}, width]"
        )


def _check_count(n: Any) -> int:
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
        raise SpecError(f"n={n!r} is not a whole number of at least 1")
    return int(n)
