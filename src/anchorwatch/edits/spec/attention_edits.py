"""Edits of attention: keys hidden from all queries, heads taken out, and one that does nothing.

Each class says which keys or heads it changes, how, and what its control is. Keys that an edit
finds by itself are chosen from the attention that keys received, in plain numpy.
Shapes: a unit is one set of keys, of a head, a layer or the model, as the edit's scope says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from anchorwatch.edits.spec.edit import Edit, check_seed, check_word, register_edit
from anchorwatch.errors import SpecError
from anchorwatch.metrics import sink_rules as rules
from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.probes.spec import GROUPS
from anchorwatch.trace.schema import MISSING, RunShape, check_count

if TYPE_CHECKING:
    from anchorwatch.edits.ablation import AttentionPatch
    from anchorwatch.edits.controls import ControlDraws
    from anchorwatch.edits.runtime import EditedRow

FORMS = ("logit", "penalty", "weight", "value", "value_mean")
DETECT = ("previous_shadow", "previous_edited", "same_shadow", "oracle")
SCOPES = ("head", "layer", "model")
MATCHES = ("sinks", "class", "rank", "mass")
HIDE_FROM = ("all", "last")
MASS_KEYS = 64
"""Keys of a head that a control matched by attention may hide, unless it says."""


@dataclass(frozen=True, repr=False)
class Hiding(Edit):
    """Edits that hide keys, in one of five forms.

    "logit": -inf before the softmax, rows renormalise. "penalty": the logit lowered by `penalty`.
    "weight": zero after the softmax, nothing renormalised. "value": the value zeroed, attention as
    it was. "value_mean": the value replaced by the mean over the keys that a query may look at.

    `hide_from` is "all" queries, or only the "last" one of the canvas, which in autoregression
    predicts the next token (with a cache each step has no other). Hidden from all queries, a sink
    of an autoregressive model forms again at the next token, in the rows that no longer see it;
    hidden from the last one it cannot, and what the model loses is larger.
    """

    _: KW_ONLY
    form: str = "logit"
    penalty: float | None = None
    hide_from: str = "all"

    observable: ClassVar[str] = "the hidden keys' share of each row"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word("form", self.form, FORMS)
        check_word("hide_from", self.hide_from, HIDE_FROM)
        if self.hide_from == "last" and self.form != "logit":
            raise SpecError(
                f"hide_from='last' hides keys before the softmax and form={self.form!r} does not: "
                "leave one of them out"
            )
        if self.form != "penalty":
            if self.penalty is not None:
                raise SpecError(f"form={self.form!r} takes no penalty: say form='penalty'")
            return
        c = self.penalty
        if not isinstance(c, int | float | np.number) or isinstance(c, bool) or not 0 < c < np.inf:
            raise SpecError(f"penalty={c!r} is not a number above 0: say penalty=5.0")
        object.__setattr__(self, "penalty", float(c))

    def select_keys(self, row: EditedRow) -> np.ndarray:
        """[1 or heads, ranks] positions to hide in one layer, -1 where there are fewer."""
        raise NotImplementedError

    def fill_patch(self, patch: AttentionPatch, row: EditedRow) -> None:
        # [head, rank] positions to columns of the call; heads it does not act on have none.
        keys = row.hidden_keys(self)
        head, rank = np.nonzero(keys != MISSING)
        columns = keys[head, rank].astype(np.int64) + row.view.key_start
        form = "last_logit" if self.hide_from == "last" else self.form
        patch.mark_keys(form, row.view.row, head, columns, self.penalty or True)

    def contradicts(self, other: Edit) -> str | None:
        if not isinstance(other, Hiding):
            return None
        if (self.form, self.penalty) == (other.form, other.penalty):
            return None
        if self.named_keys and other.named_keys:
            both = sorted(set(self.named_keys) & set(other.named_keys))
            return f"a key is hidden in one form, {both[0]} has two" if both else None
        return "both may find the same key and hide it in two forms; give both one form"

    def as_dict(self) -> dict[str, Any]:
        """Without `hide_from` where it is "all", as traces were written before there was one."""
        fields = super().as_dict()
        if self.hide_from == "all":
            del fields["hide_from"]
        return fields


@register_edit
@dataclass(frozen=True, repr=False)
class hide_keys(Hiding):  # noqa: N801
    """Hide the keys at some canvas positions (of autoregression: once they are written)."""

    positions: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return len(self.positions)

    @property
    def named_keys(self) -> tuple[int, ...]:
        return self.positions

    def select_keys(self, row: EditedRow) -> np.ndarray:
        # Of autoregression: positions that are not written yet have no key.
        length = row.view.length
        return np.array([[p if p < length else MISSING for p in self.positions]])

    def control(self, draws: ControlDraws) -> Edit:
        """As many others of the prompt, and as many others of the answer."""
        # Prompt and answer apart: a key of the one is no match for a key of the other.
        answer = np.asarray(draws.setting.answer)
        every = np.arange(draws.setting.shape.positions)
        drawn: list[int] = []
        for inside in (False, True):
            own = [position for position in self.positions if (position in answer) == inside]
            others = np.setdiff1d(every[np.isin(every, answer) == inside], list(draws.keys))
            if len(own) > len(others):
                part = "answer" if inside else "prompt"
                raise SpecError(
                    f"{self!r} hides {len(own)} positions of the {part} and leaves {len(others)} "
                    "to draw a control from: hide at most half, or give control=edit or None"
                )
            drawn += draws.chance.choice(others, size=len(own), replace=False).tolist()
        draws.keys.update(drawn)
        return dataclasses.replace(self, positions=tuple(sorted(drawn)))


@dataclass(frozen=True)
class Oracle:
    """Shares of attention of an unedited trace, known by its digest."""

    digest: str
    shares: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)
    """[step, layer, head, key]; None where only a manifest is left."""

    def check(self, shape: RunShape) -> None:
        """Refuse a run that the oracle's trace cannot guide."""
        if self.shares is None:
            raise SpecError(
                "a manifest knows only the digest of the oracle's trace: give the trace again, "
                "hide_sinks(..., detect='oracle', unedited=trace)"
            )
        steps, *others = self.shares.shape
        if others != [shape.layers, shape.heads, shape.positions]:
            raise SpecError(
                "the oracle's trace has other layers, heads or positions than this run: "
                "give the unedited run of the same prompt and decoding"
            )
        if steps < shape.steps:
            raise SpecError(
                f"the oracle's trace ends before this run: it has {steps} steps of {shape.steps}; "
                "give the unedited run of the same decoding"
            )


@dataclass(frozen=True)
class ReceivedSums:
    """What keys received at one layer, over the rows that were read."""

    step: int
    sums: np.ndarray
    """[head, key] attention, summed over rows."""
    rows: float
    lookers: np.ndarray
    """[key] rows that may look at each key."""

    def plus(self, later: ReceivedSums) -> ReceivedSums:
        """Rows of this and of a later step; the later one may know more keys."""
        more = later.sums.shape[-1] - self.sums.shape[-1]
        sums = np.pad(self.sums, ((0, 0), (0, more))) + later.sums
        lookers = np.pad(self.lookers, (0, more)) + later.lookers
        return ReceivedSums(later.step, sums, self.rows + later.rows, lookers)


@dataclass(frozen=True)
class Candidates:
    """What an edit may choose from, right now."""

    eligible: np.ndarray
    """[key] bool; as long as the canvas is now."""
    classes: np.ndarray
    """[key] the kind of token at each."""
    draw: tuple[int, ...]
    """The seed of what is left to chance."""


@dataclass(frozen=True)
class SortedKeys:
    """Keys of every unit, in the order in which an edit takes them."""

    keys: np.ndarray
    """[unit, rank]."""
    allowed: np.ndarray
    """[unit, key] bool."""
    classes: np.ndarray
    """[key]."""
    shares: np.ndarray
    """[unit, key] attention received, NaN where nothing is known."""


def mean_shares(seen: list[ReceivedSums], heads: list[tuple[int, ...]], scope: str) -> np.ndarray:
    """[unit, key] mean shares: of each head of one layer, of the layer, or of all layers."""
    each = [
        layer.sums[list(chosen)] / max(layer.rows, 1)
        for layer, chosen in zip(seen, heads, strict=True)
    ]
    if scope == "head":
        return each[0]
    return np.concatenate(each).mean(axis=0, keepdims=True)


@dataclass(frozen=True, repr=False)
class Detecting(Hiding):
    """Edits that find their keys themselves, k in each unit, by the attention that keys receive.

    `detect` says in which map they are found, and so which question is asked:

    - "previous_shadow": the map of the step before, as it would be without the edit. Does a step
      need the keys that were sinks one step earlier? The published protocol (arXiv 2510.15731);
      the first step has no map before it and hides nothing.
    - "previous_edited": the map of the step before as it was with the edit. What would a system
      without a second pass do? A hidden key scores 0 there, and is back every second step.
    - "same_shadow": the map of this very pass. Does a pass need the keys that it is about to use?
      Acts from the first step on, which in a short answer is the one that reads the prompt.
    - "oracle": the trace `unedited`. Does a run need the sinks that the unedited run had?

    `scope` is one set for each "head", each "layer", or the "model". `eligible` is a query group or
    a region. `last_row` reads only the last row of the map, as published for autoregression, where
    `hide_sinks(k, last_row=True, hide_from="last")` finds and hides by the last row alone.
    """

    k: int
    _: KW_ONLY
    detect: str = "previous_shadow"
    scope: str = "head"
    eligible: str = "all"
    last_row: bool = False
    unedited: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "k", check_count(self.k))
        check_word("detect", self.detect, DETECT)
        check_word("scope", self.scope, SCOPES)
        if not isinstance(self.eligible, str):
            raise SpecError(f"eligible={self.eligible!r} is not the name of a group or region")
        if self.detect == "same_shadow" and self.scope == "model":
            raise SpecError(
                "same_shadow decides at each layer, scope='model' after the last: "
                "use scope='layer', or detect='previous_shadow'"
            )
        if (self.detect == "oracle") != (self.unedited is not None):
            raise SpecError("detect='oracle' and unedited=trace go together: give both or neither")
        if self.detect == "oracle":
            if self.last_row:
                raise SpecError("an oracle knows what all rows gave: leave last_row out")
            object.__setattr__(self, "unedited", _oracle(self.unedited))

    @property
    def ranks(self) -> int:
        return self.k

    @property
    def remembers(self) -> bool:
        """Whether it needs to have seen the step before."""
        return self.detect.startswith("previous")

    @property
    def query_groups(self) -> tuple[str, ...]:
        return (self.eligible,)

    def check(self, shape: RunShape) -> None:
        super().check(shape)
        known = (*GROUPS, *shape.regions)
        if self.eligible not in known:
            raise SpecError(
                f"eligible={self.eligible!r} is unknown: expected one of {', '.join(known)}"
            )
        if self.remembers and self.steps == (0,):
            raise SpecError(
                f"{type(self).__name__}(steps=[0]) has no step before it to decide by: "
                "use detect='same_shadow'"
            )
        if isinstance(self.unedited, Oracle):
            self.unedited.check(shape)

    def select_keys(self, row: EditedRow) -> np.ndarray:
        evidence = row.received_shares(self)
        if evidence is None:  # the first step has none before it
            return np.full((1, self.ranks), MISSING, dtype=np.int32)
        return self.choose_keys(*evidence, row.candidates(self))

    def choose_keys(
        self, shares: np.ndarray, looked: np.ndarray | None, pool: Candidates
    ) -> np.ndarray:
        """[unit, ranks] keys to hide, -1 where there are fewer; one key is always left.

        `shares` [unit, key] are means over rows, `looked` [key] the share of rows that may look at
        each key (None: all of them). Keys beyond `shares` are not written yet.
        """
        # 1. Shares over the canvas as it is now; NaN where nothing is known of a key.
        count = len(pool.eligible)
        known = np.full((len(shares), count), np.nan)
        known[:, : shares.shape[1]] = shares[:, :count]
        # 2. The first k keys, in the order of the edit, among those that it wants.
        # One known key is always left.
        most = max(min(self.k, int((~np.isnan(known[0])).sum()) - 1), 0)
        allowed = pool.eligible & ~np.isnan(known)
        order = self.order_keys(known)
        wanted = allowed & self.want_keys(known, looked)
        ranks = np.cumsum(np.take_along_axis(wanted, order, axis=1), axis=1)
        keys = _first_at(order, ranks, np.arange(1, self.k + 1))
        keys[:, most:] = MISSING
        # 3. Those keys, or others in their place.
        return self.replace_keys(keys, SortedKeys(order, allowed, pool.classes, known), pool.draw)

    def order_keys(self, shares: np.ndarray) -> np.ndarray:
        """[unit, rank] keys, the ones to be hidden first; those that receive most by default."""
        return np.argsort(-shares, axis=1, kind="stable")

    def want_keys(self, shares: np.ndarray, looked: np.ndarray | None) -> np.ndarray:
        """[unit, key] bool: which keys may be hidden at all; those that receive anything."""
        return np.nan_to_num(shares) > 0

    def replace_keys(
        self, keys: np.ndarray, ordered: SortedKeys, seed: tuple[int, ...]
    ) -> np.ndarray:
        """[unit, ranks] what is hidden in place of the chosen keys [unit, k]: they themselves."""
        return keys


@register_edit
@dataclass(frozen=True, repr=False)
class hide_sinks(Detecting):  # noqa: N801
    """Hide the k keys that receive most; with a rule, only those of them it calls sinks.

    `detect` says in which map they are looked for, and so which question is asked:

    - "previous_shadow" (the default, as published): does a step need the keys that were sinks one
      step earlier? The first step hides nothing.
    - "previous_edited": what would a system without a second pass do? A hidden key scores 0 in the
      edited map, so that it is back every second step.
    - "same_shadow": does a pass need the keys that it is about to use? Acts from the first step on.
    - "oracle" (with `unedited=trace`): does a run need the sinks that the unedited run had?

    `scope`: one set for each "head", each "layer" or the "model". `eligible`: a query group or a
    region. `last_row`: only the last row of the map, as published for autoregression.
    """

    _: KW_ONLY
    rule: Rule | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rule", _rule(self.rule))

    def want_keys(self, shares: np.ndarray, looked: np.ndarray | None) -> np.ndarray:
        return super().want_keys(shares, looked) & _label_sinks(self.rule, shares, looked)

    def control(self, draws: ControlDraws) -> Edit:
        """Its own draws differ from run to run and from head to head."""
        same = {name: getattr(self, name) for name in (f.name for f in dataclasses.fields(self))}
        return hide_random(**same, seed=draws.seed)


@register_edit
@dataclass(frozen=True, repr=False)
class hide_random(Detecting):  # noqa: N801
    """The control of hide_sinks: other keys than it would hide, drawn by chance.

    `matched_to` says what the control has in common with the sinks:

    - "sinks" (or "number"): as many keys, any others. They mostly receive far less attention.
    - "class": as many, for each sink one of the same kind of token, while there is one.
    - "rank": as many, from the next 2k in rank, which receive most after the sinks.
    - "mass": keys that together receive as much attention as the sinks do, however many that takes,
      `most` at most (64 unless said): drawn one after another until their sum is nearest to it.
    """

    _: KW_ONLY
    rule: Rule | None = None
    matched_to: str = "sinks"
    seed: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rule", _rule(self.rule))
        if self.matched_to == "number":
            object.__setattr__(self, "matched_to", "sinks")
        check_word("matched_to", self.matched_to, MATCHES)
        object.__setattr__(self, "seed", check_seed(self.seed))
        if self.most is not None:
            if self.matched_to != "mass":
                raise SpecError("most limits a control matched by attention: say matched_to='mass'")
            object.__setattr__(self, "most", check_count(self.most))

    @property
    def ranks(self) -> int:
        return self.k if self.matched_to != "mass" else self.most or MASS_KEYS

    @property
    def fewest_keys(self) -> int:
        return self.k

    def as_dict(self) -> dict[str, Any]:
        """Without `most` where it is not said, as traces were written before there was one."""
        fields = super().as_dict()
        if self.most is None:
            del fields["most"]
        return fields

    @property
    def needs_token_classes(self) -> bool:
        return self.matched_to == "class"

    def want_keys(self, shares: np.ndarray, looked: np.ndarray | None) -> np.ndarray:
        return super().want_keys(shares, looked) & _label_sinks(self.rule, shares, looked)

    def replace_keys(
        self, keys: np.ndarray, ordered: SortedKeys, seed: tuple[int, ...]
    ) -> np.ndarray:
        """For each sink one of the keys that are none, of its kind where kinds matter.

        One draw after another, for all units at once: what is drawn is never drawn again.
        """
        # 1. Keys that are no sinks, [unit, rank].
        k = keys.shape[1]
        left = ordered.allowed.copy()
        units, _ = np.nonzero(keys != MISSING)
        left[units, keys[keys != MISSING]] = False
        left = np.take_along_axis(left, ordered.keys, axis=1)
        if self.matched_to == "mass":
            return self._match_mass(keys, ordered, left, seed)
        # The 2k keys that receive most after the sinks.
        if self.matched_to == "rank":
            left &= np.cumsum(left, axis=1) <= 2 * k
        # 2. For each sink one draw: the n-th of those left, n from 1 to their number.
        draws = [np.random.default_rng((*seed, unit)) for unit in range(len(keys))]
        classes = ordered.classes[ordered.keys]
        replaced = np.full(keys.shape, MISSING, dtype=np.int32)
        for rank in range(k):
            pool = left
            if self.matched_to == "class":
                alike = left & (classes == ordered.classes[keys[:, rank]][:, None])
                pool = np.where(alike.any(axis=1, keepdims=True), alike, left)
            sizes = np.where(keys[:, rank] == MISSING, 0, pool.sum(axis=1))
            drawn = [int(d.integers(n)) + 1 if n else 0 for d, n in zip(draws, sizes, strict=True)]
            ranks, wanted = np.cumsum(pool, axis=1), np.array(drawn)[:, None]
            able = np.flatnonzero(wanted[:, 0])
            replaced[able, rank] = _first_at(ordered.keys, ranks, wanted)[able, 0]
            left[able, (ranks[able] >= wanted[able]).argmax(axis=1)] = False
        # 3. What is missing goes to the end.
        order = np.argsort(replaced == MISSING, axis=1, kind="stable")
        return np.take_along_axis(replaced, order, axis=1)

    def _match_mass(
        self, keys: np.ndarray, ordered: SortedKeys, left: np.ndarray, seed: tuple[int, ...]
    ) -> np.ndarray:
        """[unit, ranks] others that together receive what the keys [unit, k] do.

        `left` [unit, rank] are those that may be drawn, in the order of `ordered.keys`.
        """
        matched = np.full((len(keys), self.ranks), MISSING, dtype=np.int32)
        for unit, own in enumerate(keys):
            sinks, others = own[own != MISSING], ordered.keys[unit][left[unit]]
            if not len(sinks) or not len(others):
                continue
            # 1. All others in an order by chance, and what the first n of them receive.
            drawn = np.random.default_rng((*seed, unit)).permutation(others)[: self.ranks]
            reached = np.cumsum(ordered.shares[unit, drawn])
            # 2. The n whose sum is nearest to that of the sinks; one key at least.
            wanted = ordered.shares[unit, sinks].sum()
            count = int(np.abs(reached - wanted).argmin()) + 1
            matched[unit, :count] = drawn[:count]
        return matched


@register_edit
@dataclass(frozen=True, repr=False)
class hide_lowest(Detecting):  # noqa: N801
    """Hide the k keys that receive least: a control that should cost nothing."""

    def order_keys(self, shares: np.ndarray) -> np.ndarray:
        return np.argsort(shares, axis=1, kind="stable")

    def want_keys(self, shares: np.ndarray, looked: np.ndarray | None) -> np.ndarray:
        return np.ones(shares.shape, dtype=bool)


@register_edit
@dataclass(frozen=True, repr=False)
class knock_out(Edit):  # noqa: N801
    """Take heads out: {(layer, head), ...}, or every head of `layers`.

    "zero" empties their output, "mean" replaces each row of it by the mean over the positions that
    row may look at, "uniform" makes them look at all of those alike (the published mask test).
    """

    heads: tuple[tuple[int, int], ...] | None = None
    form: str = "zero"

    FORMS: ClassVar[tuple[str, ...]] = ("zero", "mean", "uniform")
    observable: ClassVar[str] = "head output"

    def __post_init__(self) -> None:
        pairs = self.heads
        object.__setattr__(self, "heads", None)
        super().__post_init__()
        check_word("form", self.form, self.FORMS)
        if pairs is not None:
            if self.layers is not None:
                raise SpecError("knock_out names heads as (layer, head): leave layers out")
            object.__setattr__(self, "heads", _pairs(pairs))

    def heads_at(self, layer: int, heads: int) -> tuple[int, ...]:
        if self.heads is None:
            return super().heads_at(layer, heads)
        return tuple(head for own, head in self.heads if own == layer)

    @property
    def named_heads(self) -> tuple[tuple[int, int], ...]:
        return self.heads or ()

    @property
    def needs_earlier_rows(self) -> bool:
        return self.form == "mean"  # a mean is over earlier rows too

    def fill_patch(self, patch: AttentionPatch, row: EditedRow) -> None:
        patch.mark_heads(self.form, row.view.row, row.heads)

    def _numbers_named(self, shape: RunShape) -> dict[str, tuple[tuple[int, ...], int]]:
        pairs = self.heads or ()
        return {
            "layers": (self.layers or tuple(layer for layer, _ in pairs), shape.layers),
            "heads": (tuple(head for _, head in pairs), shape.heads),
        }

    def contradicts(self, other: Edit) -> str | None:
        if isinstance(other, knock_out) and self.form != other.form:
            return "a head is taken out in one way; give each its own heads or steps"
        return None

    def control(self, draws: ControlDraws) -> Edit:
        """As many other heads of the same layers."""
        if self.heads is None:
            raise SpecError(
                f"{self!r} takes whole layers out, which leaves no other heads to draw from: name "
                "at most half of a layer's heads, or give control=aw.edits.knock_out(layers=[...])"
            )
        # Each knock_out of a list draws from its own generator.
        shape, seed = draws.setting.shape, int(draws.chance.integers(2**31))
        sizes = {"layers": shape.layers, "per_layer": shape.heads}
        drawn = random_heads(self.heads, **sizes, seed=seed, besides=draws.heads)
        draws.heads.update(drawn)
        return dataclasses.replace(self, heads=drawn)


@register_edit
@dataclass(frozen=True, repr=False)
class no_op(Edit):  # noqa: N801
    """Goes through all the motions and changes nothing: the twin every edit is compared with."""

    def control(self, draws: ControlDraws) -> Edit:
        return self


def random_heads(
    heads: Any, *, layers: int, per_layer: int, seed: int = 0, besides: Any = ()
) -> tuple[tuple[int, int], ...]:
    """As many other heads of the same layers, for `knock_out`: the layer-matched control.

    `layers` and `per_layer` are the model's numbers of layers and of heads in each; heads `besides`
    these are not drawn either.

    >>> random_heads({(1, 0), (1, 2)}, layers=3, per_layer=4)
    ((1, 1), (1, 3))
    """
    named, drawn = _pairs(heads), []
    # Layer by layer: the control is matched by layer.
    draw = np.random.default_rng(seed)
    for layer in sorted({layer for layer, _ in named}):
        mine = {head for own, head in named if own == layer}
        out = mine | {head for own, head in besides if own == layer}
        others = [head for head in range(per_layer) if head not in out]
        if layer >= layers or max(mine) >= per_layer:
            raise SpecError(
                f"the model has {layers} layers of {per_layer} heads: {named} do not fit"
            )
        if len(others) < len(mine):
            raise SpecError(
                f"layer {layer} has {len(others)} heads besides the {len(mine)} named: "
                "name at most half of a layer"
            )
        chosen = draw.choice(others, size=len(mine), replace=False)
        drawn += [(layer, int(head)) for head in sorted(chosen)]
    return tuple(drawn)


def _first_at(order: np.ndarray, ranks: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """[unit, n] keys at which each row of `ranks`, that never falls, first reaches `wanted`."""
    # A cumulative count first reaches n at the n-th wanted key.
    reached = ranks[:, None, :] >= wanted[..., None]
    keys = np.take_along_axis(order, reached.argmax(axis=-1), axis=1).astype(np.int32)
    return np.where(reached[..., -1], keys, MISSING).astype(np.int32)


def _label_sinks(rule: Rule | None, shares: np.ndarray, looked: np.ndarray | None) -> np.ndarray:
    """[unit, key] bool: keys that the rule calls sinks; all of them without a rule."""
    if rule is None:
        return np.ones(shares.shape, dtype=bool)
    if looked is not None:  # of keys that were not written yet nothing is known
        looked = np.pad(looked.astype(float), (0, max(0, shares.shape[1] - len(looked))))
        looked = looked[: shares.shape[1]]
    return rule.labels(shares, looked)


def _rule(value: Any) -> Rule | None:
    if value is None or isinstance(value, Rule):
        return value
    if isinstance(value, str):
        return rules.parse(value)
    if isinstance(value, Mapping):
        return rules.from_dict(value)
    raise SpecError(f"rule={value!r} is not a rule: say rule=aw.rules.rulli(eps=3), or 'rulli:3'")


def _oracle(value: Any) -> Oracle:
    """From a trace, or from the digest that a manifest holds."""
    if isinstance(value, Oracle):
        return value
    if isinstance(value, str):
        return Oracle(value)
    try:
        # Anything that has the arrays of a trace will do; what has not is refused in one sentence.
        edited, digest = value.manifest.get("edits"), value.digest()
        shares = value["received"].sel(group="all").values
    except (AttributeError, KeyError):
        raise SpecError(
            "unedited is a trace that holds `received` of all queries: aw.run(model, prompt, ...)"
        ) from None
    if edited:
        raise SpecError("the oracle's trace was edited itself: run it without edits")
    return Oracle(digest, shares.astype(np.float32))


def _pairs(value: Any) -> tuple[tuple[int, int], ...]:
    wrong = SpecError(f"heads={value!r} are not pairs: say {{(layer, head), (layer, head)}}")
    if isinstance(value, str | Mapping) or not hasattr(value, "__iter__"):
        raise wrong
    pairs = []
    for pair in value:
        if not hasattr(pair, "__len__") or len(pair) != 2:
            raise wrong
        if any(not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 0 for n in pair):
            raise wrong
        pairs.append((int(pair[0]), int(pair[1])))
    if not pairs:
        raise SpecError("heads=[] names none: name at least one, or leave heads out")
    return tuple(sorted(set(pairs)))
