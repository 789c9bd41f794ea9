"""Sink tokens, registers, gates and their relatives: their tensors, and their work in one pass.

Each kind of addition is one subclass of `AdditionKind`: the tensors it has, the numbers they begin
with, which models can have it, and what it adds to an attention call. Its spec, a frozen value
without torch, is in `edits/spec/additions.py`.

A sink token sees only itself, so that its key and value are the same in every pass: they are
captured once, by the token going through the network alone, at the position where it is to stand.
Shapes: B rows, H heads, G key heads, Q queries, n added keys, D channels of a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedModel

from anchorwatch.edits import spec as specs
from anchorwatch.edits.spec import Addition, Numbers
from anchorwatch.errors import ModelError, SpecError
from anchorwatch.models.attention import NAME, active_additions, use_additions
from anchorwatch.models.extra_keys import ExtraKeys, products
from anchorwatch.models.sites import attention_modules, sites_of

if TYPE_CHECKING:
    from anchorwatch.models.model import Model

BIAS_WIDTH = 0.02
"""Standard deviation of random key and value biases, as of most initial weights."""

_MOVING_TABLES = ("dynamic", "longrope")
"""Rotary tables that depend on the length of the text, and so would a sink token's key."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a network that additions must fit."""

    layers: int
    heads: int
    groups: int
    """Key heads of a layer."""
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


@dataclass(frozen=True, eq=False)
class AdditionTensors:
    """An addition with its tensors, fitted to one network."""

    part: Addition
    embedding: torch.Tensor | None = None
    """[n, width] of tokens."""
    logit: list[torch.Tensor] | None = None
    """[H] of each layer."""
    key: list[torch.Tensor] | None = None
    """[G, n, D] of each layer."""
    value: list[torch.Tensor] | None = None
    """[G, n, D] of each layer."""
    weight: list[torch.Tensor] | None = None
    """[outputs, width] of each layer's gate."""


@dataclass(frozen=True)
class ActiveAddition:
    """An addition that is on in a pass."""

    fit: AdditionTensors
    rows: torch.Tensor | None = None
    """[B] bool: rows of the batch where it is on; None is all."""


@dataclass(frozen=True)
class Pair:
    """Key and value of sink tokens at one layer, [B or 1, G, n, D] each."""

    key: torch.Tensor
    value: torch.Tensor


# ---------------------------------------------------------------------------------------------
# One class for each kind of addition.


class AdditionKind:
    """What there is to know of one kind of addition; a subclass names its spec and is registered.

    `part` is always the spec, a value of the class `spec`.
    """

    spec: ClassVar[type[Addition]]
    token_name: ClassVar[str] = ""
    """Of tokens: the tensor `anchorwatch.NAME` [n, width] that holds the embedding."""
    layer_tensors: ClassVar[Mapping[str, str]] = {}
    """By field of the spec: the parameter's name at the attention module of each layer."""
    initial_words: ClassVar[Mapping[str, Any]] = {}
    """By field of the spec: a value that stands for numbers which training replaced."""
    in_sequence: ClassVar[bool] = False
    """Whether it is a token of the sequence (a register) and not a key beside it."""
    is_gate: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "spec" in vars(cls):
            _KINDS[cls.spec] = cls()

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the spec that are tensors of a trained model."""
        return ("embedding",) if self.token_name else tuple(self.layer_tensors)

    def shapes(self, part: Any, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor; of those that layers have, with the layers in front."""
        return {}

    def start_values(self, part: Any, start: StartContext) -> dict[str, torch.Tensor]:
        """The numbers it begins with, float32, of these shapes."""
        return {}

    def check_model(self, model: Model, part: Any) -> None:
        """Refuse a model that cannot have it."""

    def reads_inputs(self, part: Any) -> bool:
        """Whether it needs more than an attention call carries: what attention reads."""
        return False

    def attend(self, call: ExtraCall) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Logits [B, H, Q, n], the key they are products with if they are, and the value."""
        raise NotImplementedError(f"{type(self).__name__} adds no keys")


_KINDS: dict[type[Addition], AdditionKind] = {}


def kind_of(part: Addition) -> AdditionKind:
    """The kind that an addition's spec is of."""
    return _KINDS[type(part)]


@dataclass(frozen=True)
class StartContext:
    """What initial numbers may depend on."""

    network: PreTrainedModel
    sizes: Sizes
    bos_id: int | None
    mask_id: int | None


@dataclass(frozen=True)
class ExtraCall:
    """One attention call, as an addition with keys of its own sees it."""

    fit: AdditionTensors
    layer: int
    query: torch.Tensor
    """[B, H, Q, D], rotary applied."""
    scale: float
    groups: int
    pairs: Sequence[Pair]
    """Of sink tokens: key and value at each layer."""
    tables: tuple[torch.Tensor, torch.Tensor] | None
    """Rotary tables of the call, cosines and sines [B or 1, Q, channels]; None where not read."""


class _TokenKind(AdditionKind):
    """Tokens with an embedding: sink tokens and registers."""

    initial_words: ClassVar[Mapping[str, Any]] = {"embedding": "mean"}

    def shapes(self, part: Any, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {"embedding": (part.columns, sizes.width)}

    def start_values(self, part: Any, start: StartContext) -> dict[str, torch.Tensor]:
        """[n, width], as the network's own embedding would give it."""
        if isinstance(part.embedding, Numbers):
            assert part.embedding.array is not None
            return {"embedding": torch.tensor(part.embedding.array)}
        table = start.network.get_input_embeddings()
        rows = table.weight.detach()
        if part.embedding in ("start", "mask"):
            token = start.bos_id if part.embedding == "start" else start.mask_id
            row = table(torch.tensor([token], device=rows.device)).detach().float().cpu()
            return {"embedding": row.expand(part.n, -1).clone()}
        scale = float(getattr(table, "embed_scale", 1.0))
        if part.embedding == "mean":
            mean = (rows.float().mean(dim=0) * scale).cpu()
            return {"embedding": mean.expand(part.n, -1).clone()}
        # "random": as wide as the network's embeddings are, by their root mean square
        width = float(rows.float().square().mean().sqrt()) * scale
        draw = np.random.default_rng(part.seed).standard_normal((part.n, rows.shape[1]))
        return {"embedding": torch.tensor(draw, dtype=torch.float32) * width}

    def check_model(self, model: Model, part: Any) -> None:
        if part.embedding == "mask" and model.specials.mask_id is None:
            raise SpecError(f"{model.source} has no mask token: use embedding='mean' or 'start'")
        if part.embedding == "start" and model.specials.bos_id is None:
            raise SpecError(f"{model.source} names no start token: use embedding='mean' or 'mask'")


class SinkTokenKind(_TokenKind):
    """Tokens before or after the canvas that everyone sees and that see only themselves."""

    spec = specs.sink_token
    token_name = "sink"

    def check_model(self, model: Model, part: specs.sink_token) -> None:
        super().check_model(model, part)
        rotary = has_rotary(model.network)
        if part.position == "end":
            if model.family.visibility == "causal":
                raise SpecError(f"{model.source} is causal and sees no end: use position='front'")
            if not rotary:
                raise SpecError(
                    f"{model.source} has a table of positions, which ends: use position='front'"
                )
        parameters = getattr(model.network.config, "rope_parameters", None) or {}
        if part.rotary and rotary and parameters.get("rope_type") in _MOVING_TABLES:
            raise SpecError(
                f"the rotary table of {model.source} depends on the length of the text, and so "
                "would the sink_token's key: use rotary=False"
            )

    def reads_inputs(self, part: specs.sink_token) -> bool:
        return not part.rotary

    def attend(self, call: ExtraCall) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        pair, part = call.pairs[call.layer], call.fit.part
        assert isinstance(part, specs.sink_token)
        if part.rotary or call.tables is None:
            return products(call.query, pair.key, call.scale), pair.key, pair.value
        # Without rotary the queries are turned back: the logits depend on no position, and are no
        # products with the queries of this call.
        query = undo_rotary(call.query, call.tables)
        return products(query, pair.key, call.scale), None, pair.value


class RegisterKind(_TokenKind):
    """Ordinary extra tokens before the first, which see everything and are seen by everyone."""

    spec = specs.register
    token_name = "register"
    in_sequence = True

    def check_model(self, model: Model, part: specs.register) -> None:
        visibility = model.family.visibility
        if visibility != "bidirectional":
            why = (
                "is a sink token there"
                if visibility == "causal"
                else "would show early blocks late ones"
            )
            raise SpecError(f"{model.source} is {visibility}, and a register {why}: use sink_token")
        check_windows(model.network, model.source)
        super().check_model(model, part)


class _LogitKind(AdditionKind):
    """A key with value 0 whose logit is a number, not a product."""

    def attend(self, call: ExtraCall) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        assert call.fit.logit is not None
        logit = call.fit.logit[call.layer].to(call.query.dtype)[None, :, None, None]
        value = call.query.new_zeros(1, call.groups, 1, call.query.shape[-1])
        return logit.expand(*call.query.shape[:3], 1), None, value


class OffByOneKind(_LogitKind):
    """One more in the softmax's denominator: the logit is 0 and is not trained."""

    spec = specs.off_by_one

    def start_values(self, part: Any, start: StartContext) -> dict[str, torch.Tensor]:
        return {"logit": torch.zeros(start.sizes.layers, start.sizes.heads)}


class SinkLogitKind(_LogitKind):
    """One logit for each layer and head."""

    spec = specs.sink_logit
    layer_tensors: ClassVar[Mapping[str, str]] = {"logit": "sink_logit"}
    initial_words: ClassVar[Mapping[str, Any]] = {"logit": 0.0}

    def shapes(self, part: Any, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {"logit": (sizes.layers, sizes.heads)}

    def start_values(self, part: specs.sink_logit, start: StartContext) -> dict[str, torch.Tensor]:
        numbers = part.logit.array if isinstance(part.logit, Numbers) else part.logit
        logit = torch.tensor(numbers, dtype=torch.float32)
        return {"logit": logit.expand(start.sizes.layers, start.sizes.heads).clone()}


class KVBiasKind(AdditionKind):
    """Keys and values of each layer's own."""

    spec = specs.kv_bias
    layer_tensors: ClassVar[Mapping[str, str]] = {"key": "sink_key", "value": "sink_value"}
    initial_words: ClassVar[Mapping[str, Any]] = {"key": "zero", "value": "zero"}

    def shapes(self, part: Any, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        shape = (sizes.layers, sizes.groups, part.columns, sizes.channels)
        return {"key": shape, "value": shape}

    def start_values(self, part: specs.kv_bias, start: StartContext) -> dict[str, torch.Tensor]:
        values = {}
        for name, shape in self.shapes(part, start.sizes).items():
            word = getattr(part, name)
            if isinstance(word, Numbers):
                assert word.array is not None
                values[name] = torch.tensor(word.array)
            elif word == "zero":
                values[name] = torch.zeros(shape)
            else:  # "random": keys and values from two streams of one seed
                draw = np.random.default_rng([part.seed, name == "value"]).standard_normal(shape)
                values[name] = torch.tensor(draw, dtype=torch.float32) * BIAS_WIDTH
        return values

    def attend(self, call: ExtraCall) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        assert call.fit.key is not None and call.fit.value is not None
        key, value = call.fit.key[call.layer][None], call.fit.value[call.layer][None]
        return products(call.query, key, call.scale), key, value


class GateKind(AdditionKind):
    """Attention's output times sigmoid(x W) before its projection."""

    spec = specs.gate
    layer_tensors: ClassVar[Mapping[str, str]] = {"weight": "gate.weight"}
    initial_words: ClassVar[Mapping[str, Any]] = {"weight": None}
    is_gate = True

    def shapes(self, part: Any, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        outputs = sizes.heads * (1 if part.form == "headwise" else sizes.channels)
        return {"weight": (sizes.layers, outputs, sizes.reads)}

    def start_values(self, part: specs.gate, start: StartContext) -> dict[str, torch.Tensor]:
        shape = self.shapes(part, start.sizes)["weight"]
        if part.weight is not None:
            assert part.weight.array is not None
            return {"weight": torch.tensor(part.weight.array)}
        if part.init == "identity":
            return {"weight": torch.zeros(shape)}
        draw = np.random.default_rng(part.seed).standard_normal(shape)
        noise = torch.tensor(draw, dtype=torch.float32)
        return {"weight": noise * (2 / (5 * start.sizes.reads)) ** 0.5}

    def reads_inputs(self, part: Any) -> bool:
        return True


# ---------------------------------------------------------------------------------------------
# Checked and fitted to a network, before any pass.


def check_parts(model: Model, parts: Iterable[Addition]) -> None:
    """Refuse additions that a model cannot have; nothing is computed."""
    parts = tuple(parts)
    for part in parts:
        if part.lacks is not None:
            raise SpecError(
                f"a manifest knows only the digest of {part!r}'s {part.lacks}: give the numbers "
                "again, edits=[...] with the values the run had"
            )
        kind = kind_of(part)
        kind.check_model(model, part)
        check_sizes(Sizes.of(model.network), part)
        if kind.reads_inputs(part):
            sites_of(model.network)
    registers = [part for part in (*model.parts, *parts) if kind_of(part).in_sequence]
    if len(registers) > 1:
        raise SpecError("two registers stand in one place: give one with n=2")
    kernel = model.network.config._attn_implementation
    if parts and kernel != NAME:
        raise ModelError(
            f"{model.source} computes its attention with {kernel!r}, where nothing can be added: "
            "aw.load the model afresh"
        )


def check_sizes(sizes: Sizes, part: Addition) -> None:
    """Refuse numbers of other shapes than a network's."""
    for name, shape in kind_of(part).shapes(part, sizes).items():
        numbers = getattr(part, name, None)
        if not isinstance(numbers, Numbers) or numbers.array is None:
            continue
        shapes = [list(shape)]
        if name == "logit":  # the same for all layers, or one for each
            shapes.insert(0, list(shape[1:]))
        if list(numbers.array.shape) not in shapes:
            raise SpecError(
                f"{type(part).__name__}'s {name} has shape {list(numbers.array.shape)}: this "
                f"network takes {' or '.join(map(str, shapes))}"
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


def fit_addition(part: Addition, model: Model) -> AdditionTensors:
    """The tensors of an addition that a run was given."""
    network = model.network
    options = {"device": network.device, "dtype": network.dtype}
    first = initial(part, network, model.specials.bos_id, model.specials.mask_id)
    tensors: dict[str, Any] = {}
    for name, value in first.items():
        if name == "embedding":
            tensors[name] = value.to(**options)
        else:  # [layers, ...]
            tensors[name] = [of_layer.to(**options) for of_layer in value]
    return AdditionTensors(part, **tensors)


def initial(
    part: Addition, network: PreTrainedModel, bos_id: int | None, mask_id: int | None
) -> dict[str, torch.Tensor]:
    """The numbers that an addition begins with, float32, with layers in front where it has them."""
    start = StartContext(network, Sizes.of(network), bos_id, mask_id)
    return kind_of(part).start_values(part, start)


# ---------------------------------------------------------------------------------------------
# At work in one forward pass.


@dataclass
class AdditionCache:
    """What a network's additions are made of, kept until its weights change."""

    weights: int = 0
    fits: dict[Addition, AdditionTensors] = field(default_factory=dict)
    pairs: dict[Any, list[Pair]] = field(default_factory=dict)

    def of(self, network: PreTrainedModel) -> AdditionCache:
        """This cache, emptied if the weights are not those it knew."""
        # A change in place raises a tensor's version; a new tensor has another address.
        now = hash(tuple((p.data_ptr(), p._version) for p in network.parameters()))
        if now != self.weights:
            self.fits.clear()
            self.pairs.clear()
            self.weights = now
        return self


@dataclass
class PassAdditions:
    """The additions of one forward pass, as attention asks for them."""

    on: Sequence[ActiveAddition]
    groups: int
    """Key heads of a layer."""
    pairs: dict[int, list[Pair]] = field(default_factory=dict)
    """By index into `on`: what sink tokens are at each layer."""
    layer: int = 0
    reads: torch.Tensor | None = None
    """What the attention module that is computing has read, [B, Q, width]."""
    tables: tuple[torch.Tensor, torch.Tensor] | None = None
    """Its rotary tables, cosines and sines [B or 1, Q, channels]."""
    ungated: torch.Tensor | None = None
    """The last output before gates, [B, Q, H, D]."""

    @property
    def columns(self) -> int:
        """Keys they add to every layer's; registers are tokens, not added keys."""
        return sum(active.fit.part.columns for active in self.on if not _is_register(active))

    @property
    def registers(self) -> ActiveAddition | None:
        return next((active for active in self.on if _is_register(active)), None)

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens they put before the canvas."""
        return 0 if self.registers is None else self.registers.fit.part.columns

    @property
    def gates(self) -> tuple[ActiveAddition, ...]:
        return tuple(active for active in self.on if kind_of(active.fit.part).is_gate)

    def slices(self) -> list[slice]:
        """Columns of each addition among the added keys; registers and gates have none."""
        slices, start = [], 0
        for active in self.on:
            count = 0 if _is_register(active) else active.fit.part.columns
            slices.append(slice(start, start + count))
            start += count
        return slices

    def attend_alone(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor | None:
        return None

    def extra_keys(self, layer: int, query: torch.Tensor, scale: float) -> ExtraKeys | None:
        extra, seen = [], False
        for index, active in enumerate(self.on):
            part = active.fit.part
            if _is_register(active) or not part.columns:
                continue
            if heads := part.heads_at(layer, query.shape[1]):
                seen = True
                extra.append(self._keys_of(index, layer, query, scale, heads))
            else:
                # Columns that nobody sees: every layer of a pass has as many.
                extra.append(ExtraKeys.unseen(query, self.groups, part.columns))
        return ExtraKeys.together(extra) if seen else None

    def apply_gates(self, layer: int, out: torch.Tensor) -> torch.Tensor:
        self.ungated = out
        for active in self.gates:
            heads = active.fit.part.heads_at(layer, out.shape[2])
            if not heads:
                continue
            by = gate_of(active.fit, layer, self.reads, out.shape[2])  # type: ignore[arg-type]
            if len(heads) < out.shape[2]:  # other heads are not gated
                by = torch.where(_head_mask(heads, out.shape[2], out)[:, None], by, 1.0)
            if active.rows is not None:  # nor are other rows of the batch
                by = torch.where(active.rows[:, None, None, None], by, 1.0)
            out = out * by
        return out

    def _keys_of(
        self, index: int, layer: int, query: torch.Tensor, scale: float, heads: tuple[int, ...]
    ) -> ExtraKeys:
        """What one addition adds to a layer, hidden from heads and rows where it is not on."""
        active = self.on[index]
        pairs = self.pairs.get(index, ())
        call = ExtraCall(active.fit, layer, query, scale, self.groups, pairs, self.tables)
        logits, key, value = kind_of(active.fit.part).attend(call)
        # A logit of -inf is no product with a key: then there is no key to concatenate.
        if len(heads) < query.shape[1]:
            hidden = ~_head_mask(heads, query.shape[1], query)
            logits, key = logits.masked_fill(hidden[:, None, None], -torch.inf), None
        if active.rows is not None:
            logits, key = logits.masked_fill(~active.rows[:, None, None, None], -torch.inf), None
        return ExtraKeys(logits, value, key)


@dataclass
class SelfOnlyPass(PassAdditions):
    """A pass of tokens that see only themselves; keeps their keys and values."""

    zero: bool = False
    """Whether their values are to be zero."""
    heads: int = 1
    kept: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """Of each layer: keys and values [tokens, G, D]."""

    def attend_alone(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor | None:
        value = torch.zeros_like(value) if self.zero else value
        self.kept.append((key[:, :, 0], value[:, :, 0]))
        # The softmax over one key is 1: the output is the value, repeated for the heads it serves.
        return value.repeat_interleave(self.heads // value.shape[1], dim=1).transpose(1, 2)


def prepare_additions(
    network: PreTrainedModel,
    on: Sequence[ActiveAddition],
    lengths: Sequence[int],
    cache: AdditionCache | None,
) -> PassAdditions:
    """Additions ready for a pass over rows of these lengths; without a cache nothing is kept.

    `lengths` are where each row ends, its first token being at position 0.
    """
    prepared = PassAdditions(on, Sizes.of(network).groups)
    for index, active in enumerate(on):
        if not isinstance(active.fit.part, specs.sink_token):
            continue
        # 1. What decides a row's pairs: where the sink stands, and the gates it passes through.
        ends = active.fit.part.position == "end"
        rows = [
            (length if ends else 0, _gates_of(prepared.gates, b))
            for b, length in enumerate(lengths)
        ]
        # 2. Capture each distinct one once, and give every row its own.
        distinct = list(dict.fromkeys(rows))
        pairs = _capture_pairs(network, active.fit, prepared.gates, distinct, cache)
        which = [distinct.index(row) for row in rows]
        prepared.pairs[index] = pairs[0] if len(pairs) == 1 else _by_row(pairs, which)
    return prepared


def _gates_of(gates: Sequence[ActiveAddition], row: int) -> tuple[int, ...]:
    """Which of the gates are on in a row of the batch: the sink token passes through them too."""
    return tuple(g for g, gate in enumerate(gates) if gate.rows is None or bool(gate.rows[row]))


def _capture_pairs(
    network: PreTrainedModel,
    fit: AdditionTensors,
    gates: Sequence[ActiveAddition],
    rows: Sequence[tuple[int, tuple[int, ...]]],
    cache: AdditionCache | None,
) -> list[list[Pair]]:
    """A sink token's pairs for rows that end and are gated alike; those of a cache, made once."""
    if cache is None and len({own_gates for _, own_gates in rows}) == 1:
        # In training the weights change with every update: all positions in one pass.
        passed = [ActiveAddition(gates[g].fit) for g in rows[0][1]]
        return sink_pairs_at_each(network, fit, passed, [position for position, _ in rows])
    captured = []
    for position, own_gates in rows:
        passed = [ActiveAddition(gates[g].fit) for g in own_gates]
        key = (fit.part.everywhere, *(gate.fit.part.everywhere for gate in passed), position)
        pairs = None if cache is None else cache.pairs.get(key)
        if pairs is None:
            pairs = sink_pairs_at(network, fit, passed, position)
            if cache is not None:
                cache.pairs[key] = pairs
        captured.append(pairs)
    return captured


def sink_pairs_at(
    network: PreTrainedModel, fit: AdditionTensors, gates: Sequence[ActiveAddition], position: int
) -> list[Pair]:
    """Key and value of a sink token at every layer, by its passing through the network alone."""
    return sink_pairs_at_each(network, fit, gates, [position])[0]


def sink_pairs_at_each(
    network: PreTrainedModel,
    fit: AdditionTensors,
    gates: Sequence[ActiveAddition],
    positions: Sequence[int],
) -> list[list[Pair]]:
    """`sink_pairs_at` for each of some positions, in one pass."""
    part, embedding = fit.part, fit.embedding
    assert isinstance(part, specs.sink_token) and embedding is not None
    sizes, n = Sizes.of(network), len(embedding)
    # 1. A batch of single tokens: for each position, the n sink tokens.
    ids = [_position_id(network, part, first, token) for first in positions for token in range(n)]
    own = SelfOnlyPass(gates, sizes.groups, zero=part.value == "zero", heads=sizes.heads)
    with use_additions(own), let_additions_read(network, own):
        network.base_model(
            inputs_embeds=embedding[:, None].repeat(len(positions), 1, 1),
            position_ids=torch.tensor(ids, device=embedding.device)[:, None],
        )
    # 2. From [positions * n, G, D] of each layer to a pair [1, G, n, D] of each position.
    pairs: list[list[Pair]] = [[] for _ in positions]
    for key, value in own.kept:
        for index in range(len(positions)):
            rows = slice(index * n, (index + 1) * n)
            pairs[index].append(Pair(*(of[rows].transpose(0, 1)[None] for of in (key, value))))
    return pairs


@contextmanager
def let_additions_read(network: PreTrainedModel, additions: PassAdditions) -> Iterator[None]:
    """Let additions see what attention modules read, where some of them need it."""
    with ExitStack() as stack:
        if needs_reading([active.fit.part for active in additions.on]):
            for module in dict.fromkeys(attention_modules(network)):
                hook = module.register_forward_pre_hook(remember, with_kwargs=True)
                stack.callback(hook.remove)
        yield


@contextmanager
def use_additions_of(network: PreTrainedModel, additions: PassAdditions | None) -> Iterator[None]:
    """Give a network additions, or none, for one forward pass."""
    if additions is None:
        yield
        return
    additions.layer = 0
    with use_additions(additions), let_additions_read(network, additions):
        yield


def needs_reading(parts: Iterable[Addition]) -> bool:
    """Whether any of the additions looks at more than an attention call carries."""
    return any(kind_of(part).reads_inputs(part) for part in parts)


def remember(_: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """A hook before an attention module: tell the additions of this pass what it reads."""
    additions = active_additions()
    if isinstance(additions, PassAdditions):
        additions.reads = given["hidden_states"] if "hidden_states" in given else args[0]
        additions.tables = given.get("position_embeddings")


def gate_of(fit: AdditionTensors, layer: int, reads: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, Q, H, D or 1] what a gate multiplies by: sigmoid(x W), doubled where it began as 1.

    `reads` x is what attention reads, [B, Q, width].
    """
    assert fit.weight is not None
    # [B, Q, outputs]: one number for each channel of a head, or one for each head.
    by = torch.sigmoid(torch.nn.functional.linear(reads, fit.weight[layer]))
    by = by * 2 if fit.part.init == "identity" else by  # type: ignore[attr-defined]
    return by.view(*by.shape[:2], heads, -1)


def undo_rotary(query: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Queries [B, H, Q, D] as they were before rotary positions turned their first channels.

    All networks whose sites are named turn halves. Some tables are longer than one (YaRN's); only
    the turn is undone, so that a product with a key at position 0 is one of two equal positions.
    """
    cosine, sine = (table[:, None] for table in tables)
    # YaRN scales both tables: only the angle is undone.
    length = (cosine.square() + sine.square()).sqrt()
    cosine, sine = cosine / length, sine / length
    size = cosine.shape[-1]
    turned, rest = query[..., :size], query[..., size:]
    half = size // 2
    # Rotary is q' = q cos + rotate(q) sin; its inverse turns the other way.
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
    # 1. Embeddings [B, n + T, width] and the positions of the canvas.
    tokens = network.get_input_embeddings()(rows)
    tokens = torch.cat([embedding.to(tokens.dtype).expand(batch, -1, -1), tokens], dim=1)
    if positions is None:
        positions = torch.arange(length, device=rows.device).expand(batch, -1)
    # 2. Who may look at the registers: rows of the batch without them may not.
    seen = rows.new_ones(batch, n, dtype=torch.bool)
    if registers.rows is not None:
        seen &= registers.rows[:, None]
    # 3. Who may look at whom, as pairs [B, n + T, n + T] or as keys [B, n + T].
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


def with_registers(network: PreTrainedModel, positions: torch.Tensor, n: int) -> torch.Tensor:
    """Position ids [B, n + T]: registers before position 0, or at row 0 of a position table."""
    before = torch.arange(-n, 0, device=positions.device)
    if not has_rotary(network):
        before = torch.full((n,), _first_row(network), device=positions.device)
    return torch.cat([before.expand(len(positions), -1), positions], dim=1)


def _first_row(network: PreTrainedModel) -> int:
    """The first row of a table of positions, which RoBERTa has after its padding's."""
    roberta = network.config.model_type == "roberta"
    return int(network.config.pad_token_id) + 1 if roberta else 0


def _position_id(network: PreTrainedModel, part: specs.sink_token, first: int, token: int) -> int:
    """Position id of one of n sink tokens; `first` is that of the first real token, or the end."""
    if not has_rotary(network):
        return _first_row(network)
    if not part.rotary:
        return 0
    return first + token - (part.n if part.position == "front" else 0)


def _by_row(captured: Sequence[list[Pair]], which: Sequence[int]) -> list[Pair]:
    """Pairs [B, G, n, D] of rows that have different ones."""
    layers = []
    for pairs in zip(*captured, strict=True):
        keys, values = (torch.cat([getattr(p, name) for p in pairs]) for name in ("key", "value"))
        layers.append(Pair(keys[list(which)], values[list(which)]))
    return layers


def _is_register(active: ActiveAddition) -> bool:
    return kind_of(active.fit.part).in_sequence


def _head_mask(heads: tuple[int, ...], total: int, like: torch.Tensor) -> torch.Tensor:
    """[H] bool: which heads are among these."""
    mask = torch.zeros(total, dtype=torch.bool, device=like.device)
    mask[list(heads)] = True
    return mask
