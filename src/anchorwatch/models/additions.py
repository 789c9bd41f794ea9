"""Sink tokens, registers, gates and their relatives: their tensors, and their work in one pass.

A token that sees only itself has the same key and value in every pass: they are captured once, by
the token going through the network alone, at the place where it is to stand.
Shapes: B rows, H heads, G key heads, Q queries, n added keys, D channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel

from anchorwatch.edits import spec as kinds
from anchorwatch.edits.spec import Numbers, Part
from anchorwatch.errors import ModelError, SpecError
from anchorwatch.models.attention import NAME, active_additions, use_additions
from anchorwatch.models.extra_keys import ExtraKeys, products
from anchorwatch.models.families import attention_modules, sites_of

if TYPE_CHECKING:
    from anchorwatch.models.model import Model

BIAS_WIDTH = 0.02
"""Standard deviation of random key and value biases, as of most initial weights."""

_MOVING_TABLES = ("dynamic", "longrope")
"""Rotary tables that depend on the length of the text, and so would a sink token's key."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A part and its tensors."""

    part: Part
    embedding: torch.Tensor | None = None
    """[n, width] of tokens."""
    logit: list[torch.Tensor] | None = None
    """[H] of each layer."""
    key: list[torch.Tensor] | None = None
    """[G, n, D] of each layer."""
    value: list[torch.Tensor] | None = None
    weight: list[torch.Tensor] | None = None
    """[outputs, width] of each layer's gate."""


@dataclass(frozen=True)
class Sizes:
    """What a network's parts must fit."""

    layers: int
    heads: int
    groups: int
    channels: int
    """Of a head."""
    reads: int
    """Width of what attention reads."""
    width: int
    """Of an embedding."""

    @classmethod
    def of(cls, network: PreTrainedModel) -> Sizes:
        config = network.config
        heads, width = int(config.num_attention_heads), int(config.hidden_size)
        return cls(
            layers=int(config.num_hidden_layers),
            heads=heads,
            groups=int(getattr(config, "num_key_value_heads", None) or heads),
            channels=int(getattr(config, "head_dim", None) or width // heads),
            reads=width,
            width=int(network.get_input_embeddings().weight.shape[1]),
        )


def check_parts(model: Model, parts: Iterable[Part]) -> None:
    """Refuse parts that a model cannot have; nothing is computed."""
    parts = tuple(parts)
    for part in parts:
        if part.lacks is not None:
            raise SpecError(
                f"a manifest knows only the digest of {part!r}'s {part.lacks}: give the numbers "
                "again, edits=[...] with the values the run had"
            )
        if isinstance(part, kinds.sink_token | kinds.register):
            _check_token(model, part)
        check_sizes(Sizes.of(model.network), part)
        if isinstance(part, kinds.gate) or getattr(part, "rotary", True) is False:
            sites_of(model.network)
    registers = [p for p in (*model.parts, *parts) if isinstance(p, kinds.register)]
    if len(registers) > 1:
        raise SpecError("two registers stand in one place: give one with n=2")
    kernel = model.network.config._attn_implementation
    if parts and kernel != NAME:
        raise ModelError(
            f"{model.source} computes its attention with {kernel!r}, where nothing can be added: "
            "aw.load the model afresh"
        )


def has_rotary(network: PreTrainedModel) -> bool:
    """Whether positions are rotations of queries and keys."""
    return any(name.endswith("inv_freq") for name, _ in network.named_buffers())


def windows_of(network: PreTrainedModel) -> list[int | None] | None:
    """How far each layer sees, as transformers counts; None where every layer sees all."""
    config = network.config
    window = getattr(config, "sliding_window", None)
    if not window or not getattr(config, "use_sliding_window", True):
        return None
    layers = getattr(config, "layer_types", None)
    layers = layers or ["sliding_attention"] * int(config.num_hidden_layers)
    return [int(window) if kind == "sliding_attention" else None for kind in layers]


def check_windows(network: PreTrainedModel, source: str) -> None:
    """Refuse a register, which all see and which sees all, where some layer sees only nearby."""
    if any(windows_of(network) or ()):
        raise SpecError(
            f"{source} has sliding-window layers, where a register sees and is seen only nearby: "
            "use sink_token"
        )


def fit_addition(part: Part, model: Model) -> Fit:
    """The tensors of a part that a run was given."""
    network, sizes = model.network, Sizes.of(model.network)
    at = {"device": network.device, "dtype": network.dtype}
    first = initial(part, network, model.specials.bos_id, model.specials.mask_id)
    made: dict[str, Any] = {}
    for name, value in first.items():
        if name == "embedding":
            made[name] = value.to(**at)
        else:
            made[name] = [value[layer].to(**at) for layer in range(sizes.layers)]
    return Fit(part, **made)


def initial(
    part: Part, network: PreTrainedModel, bos_id: int | None, mask_id: int | None
) -> dict[str, torch.Tensor]:
    """The numbers that a part begins with, float32, one for each layer where it has layers."""
    sizes = Sizes.of(network)
    if isinstance(part, kinds.sink_token | kinds.register):
        return {"embedding": _embedding(part, network, bos_id, mask_id)}
    if isinstance(part, kinds.off_by_one):
        return {"logit": torch.zeros(sizes.layers, sizes.heads)}
    if isinstance(part, kinds.sink_logit):
        held = part.logit.array if isinstance(part.logit, Numbers) else part.logit
        logit = torch.tensor(held, dtype=torch.float32)
        return {"logit": logit.expand(sizes.layers, sizes.heads).clone()}
    if isinstance(part, kinds.kv_bias):
        return {name: _bias(part, name, sizes) for name in ("key", "value")}
    assert isinstance(part, kinds.gate)
    return {"weight": _gate_weight(part, sizes)}


def _check_token(model: Model, part: kinds.sink_token | kinds.register) -> None:
    kind, seen = type(part).__name__, model.family.visibility
    if isinstance(part, kinds.register) and seen != "bidirectional":
        why = "is a sink token there" if seen == "causal" else "would show early blocks late ones"
        raise SpecError(f"{model.source} is {seen}, and a register {why}: use sink_token")
    if isinstance(part, kinds.register):
        check_windows(model.network, model.source)
    if part.embedding == "mask" and model.specials.mask_id is None:
        raise SpecError(f"{model.source} has no mask token: use embedding='mean' or 'start'")
    if part.embedding == "start" and model.specials.bos_id is None:
        raise SpecError(f"{model.source} names no start token: use embedding='mean' or 'mask'")
    if isinstance(part, kinds.register):
        return
    rotary = has_rotary(model.network)
    if part.position == "end":
        if seen == "causal":
            raise SpecError(f"{model.source} is causal and sees no end: use position='front'")
        if not rotary:
            raise SpecError(
                f"{model.source} has a table of positions, which ends: use position='front'"
            )
    said = getattr(model.network.config, "rope_parameters", None) or {}
    if part.rotary and rotary and said.get("rope_type") in _MOVING_TABLES:
        raise SpecError(
            f"the rotary table of {model.source} depends on the length of the text, and so would "
            f"the {kind}'s key: use rotary=False"
        )


def check_sizes(sizes: Sizes, part: Part) -> None:
    """Refuse numbers of other shapes than a network's."""
    outputs = sizes.heads * (1 if getattr(part, "form", "") == "headwise" else sizes.channels)
    bias = [sizes.layers, sizes.groups, part.columns, sizes.channels]
    expected = {
        "embedding": [[part.columns, sizes.width]],
        "logit": [[sizes.heads], [sizes.layers, sizes.heads]],
        "key": [bias],
        "value": [bias],
        "weight": [[sizes.layers, outputs, sizes.reads]],
    }
    for name, shapes in expected.items():
        held = getattr(part, name, None)
        if not isinstance(held, Numbers) or held.array is None:
            continue
        if list(held.array.shape) not in shapes:
            raise SpecError(
                f"{type(part).__name__}'s {name} has shape {list(held.array.shape)}: this "
                f"network takes {' or '.join(map(str, shapes))}"
            )


def _embedding(
    part: Any, network: PreTrainedModel, bos_id: int | None, mask_id: int | None
) -> torch.Tensor:
    """[n, width], as the network's own embedding would give it."""
    if isinstance(part.embedding, Numbers):
        assert part.embedding.array is not None
        return torch.tensor(part.embedding.array)
    table = network.get_input_embeddings()
    rows = table.weight.detach()
    if part.embedding in ("start", "mask"):
        token = bos_id if part.embedding == "start" else mask_id
        row = table(torch.tensor([token], device=rows.device)).detach().float().cpu()
        return row.expand(part.n, -1).clone()
    scale = float(getattr(table, "embed_scale", 1.0))
    if part.embedding == "mean":
        return (rows.float().mean(dim=0) * scale).cpu().expand(part.n, -1).clone()
    width = float(rows.float().square().mean().sqrt()) * scale
    draw = np.random.default_rng(part.seed)
    return torch.tensor(draw.standard_normal((part.n, rows.shape[1])), dtype=torch.float32) * width


def _bias(part: kinds.kv_bias, name: str, sizes: Sizes) -> torch.Tensor:
    held = getattr(part, name)
    if isinstance(held, Numbers):
        assert held.array is not None
        return torch.tensor(held.array)
    shape = (sizes.layers, sizes.groups, part.n, sizes.channels)
    if held == "zero":
        return torch.zeros(shape)
    draw = np.random.default_rng([part.seed, name == "value"])
    return torch.tensor(draw.standard_normal(shape), dtype=torch.float32) * BIAS_WIDTH


def _gate_weight(part: kinds.gate, sizes: Sizes) -> torch.Tensor:
    if part.weight is not None:
        assert part.weight.array is not None
        return torch.tensor(part.weight.array)
    outputs = sizes.heads * (1 if part.form == "headwise" else sizes.channels)
    shape = (sizes.layers, outputs, sizes.reads)
    if part.init == "identity":
        return torch.zeros(shape)
    draw = np.random.default_rng(part.seed)
    noise = torch.tensor(draw.standard_normal(shape), dtype=torch.float32)
    return noise * (2 / (5 * sizes.reads)) ** 0.5


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
