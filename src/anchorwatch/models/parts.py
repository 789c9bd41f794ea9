"""Parts at work during one forward pass of a network.

A token that sees only itself has the same key and value in every pass: they are captured once, by
the token going through the network alone, at the place where it is to stand.
Shapes: B rows, H heads, G key heads, Q queries, n added keys, D channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from anchorwatch.edits import spec as kinds
from anchorwatch.edits.spec import Part
from anchorwatch.models.attention import active_additions, use_additions
from anchorwatch.models.extra_keys import ExtraKeys, products
from anchorwatch.models.fits import Fit, Sizes, has_rotary
from anchorwatch.models.sites import attention_modules


@dataclass(frozen=True)
class ActiveAddition:
    """A part that is on in a pass."""

    fit: Fit
    rows: torch.Tensor | None = None
    """[B] bool: rows of the batch where it is; None is all."""


@dataclass(frozen=True)
class Pair:
    """Key and value of sink tokens at one layer, [B or 1, G, n, D] each."""

    key: torch.Tensor
    value: torch.Tensor


@dataclass
class AdditionCache:
    """What a network's parts are made of, kept until its weights change."""

    weights: int = 0
    fits: dict[Part, Fit] = field(default_factory=dict)
    pairs: dict[Any, list[Pair]] = field(default_factory=dict)

    def of(self, network: PreTrainedModel) -> AdditionCache:
        """This closet, emptied if the weights are not those it knew."""
        now = hash(tuple((p.data_ptr(), p._version) for p in network.parameters()))
        if now != self.weights:
            self.fits.clear()
            self.pairs.clear()
            self.weights = now
        return self


@dataclass
class PassAdditions:
    """Parts of one forward pass, as attention asks for them."""

    on: Sequence[ActiveAddition]
    groups: int
    """Key heads of a layer."""
    pairs: dict[int, list[Pair]] = field(default_factory=dict)
    """By place in `on`: what sink tokens are at each layer."""
    layer: int = 0
    reads: torch.Tensor | None = None
    """What the attention module that is computing has read, [B, Q, width]."""
    tables: tuple[torch.Tensor, torch.Tensor] | None = None
    """Its rotary tables, cosines and sines [B or 1, Q, channels]."""
    ungated: torch.Tensor | None = None
    """The last output before gates, [B, Q, H, D]."""

    @property
    def columns(self) -> int:
        return sum(one.fit.part.columns for one in self.on if not _is_register(one))

    @property
    def registers(self) -> ActiveAddition | None:
        return next((one for one in self.on if _is_register(one)), None)

    @property
    def ahead(self) -> int:
        """Tokens they put before the canvas."""
        return 0 if self.registers is None else self.registers.fit.part.columns

    @property
    def gates(self) -> tuple[ActiveAddition, ...]:
        return tuple(one for one in self.on if one.fit.weight is not None)

    def slices(self) -> list[slice]:
        """Columns of each part among the added keys; registers and gates have none."""
        found, start = [], 0
        for one in self.on:
            count = 0 if _is_register(one) else one.fit.part.columns
            found.append(slice(start, start + count))
            start += count
        return found

    def alone(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor | None:
        return None

    def added(self, layer: int, query: torch.Tensor, scale: float) -> ExtraKeys | None:
        found, seen = [], False
        for index, one in enumerate(self.on):
            part = one.fit.part
            if _is_register(one) or not part.columns:
                continue
            if heads := part.heads_at(layer, query.shape[1]):
                seen = True
                found.append(self._of(index, layer, query, scale, heads))
            else:
                found.append(ExtraKeys.unseen(query, self.groups, part.columns))
        return ExtraKeys.together(found) if seen else None

    def gated(self, layer: int, out: torch.Tensor) -> torch.Tensor:
        self.ungated = out
        for one in self.gates:
            heads = one.fit.part.heads_at(layer, out.shape[2])
            if not heads:
                continue
            by = gate_of(one.fit, layer, self.reads, out.shape[2])  # type: ignore[arg-type]
            if len(heads) < out.shape[2]:
                by = torch.where(_among(heads, out.shape[2], out)[:, None], by, 1.0)
            if one.rows is not None:
                by = torch.where(one.rows[:, None, None, None], by, 1.0)
            out = out * by
        return out

    def _of(
        self, index: int, layer: int, query: torch.Tensor, scale: float, heads: tuple[int, ...]
    ) -> ExtraKeys:
        """What one part adds to a layer."""
        one = self.on[index]
        rows = one.rows
        logits, key, value = self._looks(index, layer, query, scale)
        if len(heads) < query.shape[1]:
            hidden = ~_among(heads, query.shape[1], query)
            logits, key = logits.masked_fill(hidden[:, None, None], -torch.inf), None
        if rows is not None:
            logits, key = logits.masked_fill(~rows[:, None, None, None], -torch.inf), None
        return ExtraKeys(logits, value, key)

    def _looks(
        self, index: int, layer: int, query: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Logits [B, H, Q, n], the key they are products with, and the value."""
        fit = self.on[index].fit
        if fit.logit is not None:
            logit = fit.logit[layer].to(query.dtype)[None, :, None, None]
            value = query.new_zeros(1, self.groups, 1, query.shape[-1])
            return logit.expand(*query.shape[:3], 1), None, value
        if fit.key is not None and fit.value is not None:
            key, value = fit.key[layer][None], fit.value[layer][None]
            return products(query, key, scale), key, value
        pair = self.pairs[index][layer]
        if fit.part.rotary or self.tables is None:  # type: ignore[attr-defined]
            return products(query, pair.key, scale), pair.key, pair.value
        return products(undo_rotary(query, self.tables), pair.key, scale), None, pair.value


@dataclass
class SelfOnlyPass(PassAdditions):
    """A pass of tokens that see only themselves; keeps their keys and values."""

    zero: bool = False
    """Whether their values are to be zero."""
    heads: int = 1
    kept: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def alone(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor | None:
        value = torch.zeros_like(value) if self.zero else value
        self.kept.append((key[:, :, 0], value[:, :, 0]))
        return value.repeat_interleave(self.heads // value.shape[1], dim=1).transpose(1, 2)


def prepare_additions(
    network: PreTrainedModel,
    on: Sequence[ActiveAddition],
    lengths: Sequence[int],
    closet: AdditionCache | None,
) -> PassAdditions:
    """Parts ready for a pass over rows of these lengths; without a closet nothing is kept.

    `lengths` are where each row ends, its first token being at place 0.
    """
    made = PassAdditions(on, Sizes.of(network).groups)
    for index, one in enumerate(on):
        if not isinstance(one.fit.part, kinds.sink_token):
            continue
        ends = one.fit.part.position == "end"
        rows = [
            (length if ends else 0, _gates_of(made.gates, b)) for b, length in enumerate(lengths)
        ]
        distinct = list(dict.fromkeys(rows))
        found = _capture_pairs(network, one.fit, made.gates, distinct, closet)
        which = [distinct.index(row) for row in rows]
        made.pairs[index] = found[0] if len(found) == 1 else _by_row(found, which)
    return made


def _gates_of(gates: Sequence[ActiveAddition], row: int) -> tuple[int, ...]:
    """Which of the gates are on in a row of the batch: the sink token passes through them too."""
    return tuple(g for g, gate in enumerate(gates) if gate.rows is None or bool(gate.rows[row]))


def _capture_pairs(
    network: PreTrainedModel,
    fit: Fit,
    gates: Sequence[ActiveAddition],
    rows: Sequence[tuple[int, tuple[int, ...]]],
    closet: AdditionCache | None,
) -> list[list[Pair]]:
    """A sink token's pairs for rows that end and are gated alike; those of a closet, made once."""
    found = []
    if closet is None and len({mine for _, mine in rows}) == 1:  # in training, all in one pass
        passed = [ActiveAddition(gates[g].fit) for g in rows[0][1]]
        return captures(network, fit, passed, [place for place, _ in rows])
    for place, mine in rows:
        passed = [ActiveAddition(gates[g].fit) for g in mine]
        key = (fit.part.everywhere, *(gate.fit.part.everywhere for gate in passed), place)
        if closet is None or key not in closet.pairs:
            made = capture(network, fit, passed, place)
            if closet is not None:
                closet.pairs[key] = made
        else:
            made = closet.pairs[key]
        found.append(made)
    return found


def capture(
    network: PreTrainedModel, fit: Fit, gates: Sequence[ActiveAddition], place: int
) -> list[Pair]:
    """Key and value of a sink token at every layer, by its passing through the network alone."""
    return captures(network, fit, gates, [place])[0]


def captures(
    network: PreTrainedModel, fit: Fit, gates: Sequence[ActiveAddition], places: Sequence[int]
) -> list[list[Pair]]:
    """The same at each of some places, in one pass."""
    part, embedding = fit.part, fit.embedding
    assert isinstance(part, kinds.sink_token) and embedding is not None
    sizes, n = Sizes.of(network), len(embedding)
    at = [_position(network, part, place, token) for place in places for token in range(n)]
    own = SelfOnlyPass(gates, sizes.groups, zero=part.value == "zero", heads=sizes.heads)
    with use_additions(own), let_additions_read(network, own):
        network.base_model(
            inputs_embeds=embedding[:, None].repeat(len(places), 1, 1),
            position_ids=torch.tensor(at, device=embedding.device)[:, None],
        )
    found: list[list[Pair]] = [[] for _ in places]
    for key, value in own.kept:  # [places * n, G, D] of a layer
        for index in range(len(places)):
            mine = slice(index * n, (index + 1) * n)
            found[index].append(Pair(*(held[mine].transpose(0, 1)[None] for held in (key, value))))
    return found


@contextmanager
def let_additions_read(network: PreTrainedModel, dress: PassAdditions) -> Iterator[None]:
    """Let parts see what attention modules read, where some of them need it."""
    with ExitStack() as stack:
        if needs_reading([one.fit for one in dress.on]):
            for module in dict.fromkeys(attention_modules(network)):
                hook = module.register_forward_pre_hook(remember, with_kwargs=True)
                stack.callback(hook.remove)
        yield


@contextmanager
def use_additions_of(network: PreTrainedModel, dress: PassAdditions | None) -> Iterator[None]:
    """Let a network wear parts, or none, for one forward pass."""
    if dress is None:
        yield
        return
    dress.layer = 0
    with use_additions(dress), let_additions_read(network, dress):
        yield


def needs_reading(fits: Sequence[Fit]) -> bool:
    """Whether any of the parts looks at more than an attention call carries."""
    return any(fit.weight is not None or getattr(fit.part, "rotary", True) is False for fit in fits)


def remember(_: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """A hook before an attention module: tell the parts of this pass what it reads."""
    dress = active_additions()
    if isinstance(dress, PassAdditions):
        dress.reads = given["hidden_states"] if "hidden_states" in given else args[0]
        dress.tables = given.get("position_embeddings")


def gate_of(fit: Fit, layer: int, reads: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, Q, H, D or 1] what a gate multiplies by, from what attention reads [B, Q, width]."""
    assert fit.weight is not None
    by = torch.sigmoid(torch.nn.functional.linear(reads, fit.weight[layer]))
    by = by * 2 if fit.part.init == "identity" else by  # type: ignore[attr-defined]
    return by.view(*by.shape[:2], heads, -1)


def undo_rotary(query: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Queries [B, H, Q, D] as they were before rotary positions turned their first channels.

    All networks whose sites are named turn halves. Some tables are longer than one (YaRN's); only
    the turn is undone, so that a product with a key at place 0 is one of two equal places.
    """
    cosine, sine = (table[:, None] for table in tables)
    length = (cosine.square() + sine.square()).sqrt()
    cosine, sine = cosine / length, sine / length
    size = cosine.shape[-1]
    turned, rest = query[..., :size], query[..., size:]
    half = size // 2
    crossed = torch.cat([turned[..., half:], -turned[..., :half]], dim=-1)
    return torch.cat([turned * cosine + crossed * sine, rest], dim=-1)


def prepend_registers(
    network: PreTrainedModel,
    registers: ActiveAddition,
    rows: torch.Tensor,
    keys: torch.Tensor | None,
    pairs: torch.Tensor | None,
    positions: torch.Tensor | None,
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
    """Tokens, keys [B, n + T], pairs and positions with registers in front of rows [B, T]."""
    embedding, (batch, length) = registers.fit.embedding, rows.shape
    assert embedding is not None
    n = len(embedding)
    tokens = network.get_input_embeddings()(rows)
    tokens = torch.cat([embedding.to(tokens.dtype).expand(batch, -1, -1), tokens], dim=1)
    if positions is None:
        positions = torch.arange(length, device=rows.device).expand(batch, -1)
    seen = rows.new_ones(batch, n, dtype=torch.bool)
    if registers.rows is not None:  # rows without them may not see them
        seen &= registers.rows[:, None]
    if pairs is not None:
        # A register may look at what some other token may: a key hidden from all is hidden from it.
        own = torch.eye(length, dtype=torch.bool, device=rows.device)
        looked = (pairs & (~own if length > 1 else own)).any(dim=1)
        pairs = torch.nn.functional.pad(pairs, (n, 0, n, 0), value=True)
        pairs[:, :n, n:] = looked[:, None]
        pairs[:, :, :n] &= seen[:, None]
        pairs[:, :n, :n] |= torch.eye(n, dtype=torch.bool, device=rows.device)
    else:
        keys = torch.ones_like(rows, dtype=torch.bool) if keys is None else keys
        keys = torch.cat([seen, keys], dim=1)
    return {"inputs_embeds": tokens}, keys, pairs, with_registers(network, positions, n)


def with_registers(network: PreTrainedModel, places: torch.Tensor, n: int) -> torch.Tensor:
    """Position ids [B, n + T]: registers before place 0, or at row 0 of a table of positions."""
    before = torch.arange(-n, 0, device=places.device)
    if not has_rotary(network):
        before = torch.full((n,), _first_row(network), device=places.device)
    return torch.cat([before.expand(len(places), -1), places], dim=1)


def _first_row(network: PreTrainedModel) -> int:
    """The first row of a table of positions, which RoBERTa has after its padding's."""
    roberta = network.config.model_type == "roberta"
    return int(network.config.pad_token_id) + 1 if roberta else 0


def _position(network: PreTrainedModel, part: kinds.sink_token, place: int, token: int) -> int:
    """Position id of one of n sink tokens; `place` is that of the first real token, or the end."""
    if not has_rotary(network):
        return _first_row(network)
    if not part.rotary:
        return 0
    return place + token - (part.n if part.position == "front" else 0)


def _by_row(found: Sequence[list[Pair]], which: Sequence[int]) -> list[Pair]:
    """Pairs [B, G, n, D] of rows that have different ones."""
    layers = []
    for pairs in zip(*found, strict=True):
        keys, values = (torch.cat([getattr(p, name) for p in pairs]) for name in ("key", "value"))
        layers.append(Pair(keys[list(which)], values[list(which)]))
    return layers


def _is_register(one: ActiveAddition) -> bool:
    return isinstance(one.fit.part, kinds.register)


def _among(heads: tuple[int, ...], total: int, like: torch.Tensor) -> torch.Tensor:
    """[H] bool."""
    found = torch.zeros(total, dtype=torch.bool, device=like.device)
    found[list(heads)] = True
    return found
