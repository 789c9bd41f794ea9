"""What to measure: one class for each probe, named like the quantity it measures.

A probe is one frozen dataclass under `@register_probe`:

- its fields are the settings a user gives;
- `fields(shape)` names the arrays it adds to a trace (dims, dtype, unit), so that `aw.plan` can say
  the bytes before anything runs;
- `request(wanted, call)` asks for statistics of the attention map beyond the attention received;
- `collect(reading)` keeps the numbers of one sequence at one layer and step.

Nothing else is needed: `aw.probes`, the command line's --probes, manifests and the recorder know it
by its registration. No T x T map is ever held, except by `pattern` and `qk_maps`, by name. Torch is
not imported here, so that a laptop can read what a trace measured: collectors use tensor methods.
Sums over keys are over the canvas; a sink token's share is kept apart.

The mean norm of the queries of every head needs one class:

>>> @register_probe
... @dataclass(frozen=True, repr=False)
... class query_length(Probe):
...     def fields(self, shape):
...         dims, says = ("step", "layer", "head"), "mean norm of the queries"
...         yield field("query_length", dims, "float32", "norm", says, shape)
...     def collect(self, reading):
...         reading.put("query_length", reading.query.float().norm(dim=-1).mean(dim=-1))
>>> PROBES.pop("query_length")()
query_length()

Shapes: H heads, Q query rows of the pass, L canvas positions, D channels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from anchorwatch.errors import SpecError
from anchorwatch.trace.schema import (
    Field,
    RunShape,
    check_count,
    check_positions,
    field,
    peak_fields,
    summary,
)

if TYPE_CHECKING:
    import torch

    from anchorwatch.probes.recorder import (
        CallReading,
        ExpertReading,
        KeyReading,
        SequenceReading,
        StateReading,
    )
    from anchorwatch.probes.reduce import StatRequest

NAN = float("nan")

GROUPS = ("all", "masked", "written", "prompt")
"""Query groups every run has; region names are groups too."""


@dataclass(frozen=True, repr=False)
class Probe:
    """What every probe has in common: the layers and steps it looks at (None: all of them).

    `every=k` looks at every k-th step, the first included; the steps between are absent (NaN, -1).
    """

    _: KW_ONLY
    layers: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = None
    every: int = 1

    needs_map: ClassVar[bool] = True
    """Whether it reads attention probabilities (one more pass over queries and keys)."""
    reads_keys: ClassVar[bool] = False
    """Whether it reads keys and values of calls in `collect_keys`, without the map."""
    needs_regions: ClassVar[bool] = False
    adds_up: ClassVar[bool] = False
    """Whether what it requests is summed over query rows. With a cache a pass brings only new rows:
    such sums are then taken at every layer and step, also where the probe does not look."""
    needs_query_sums: ClassVar[bool] = False
    """Whether it reads `sums.query`, `unit_query` or `query_norm`; they are 0 if no probe does."""
    needs_all_states: ClassVar[bool] = False
    """Whether it reads the residual states of all positions, not only of rows new at a step."""
    cheaper: ClassVar[Mapping[str, str]] = {}
    """By field, what to ask for instead where a run would keep too much. Layers and steps are not
    among it: what a probe does not look at is kept as absent."""

    def __post_init__(self) -> None:
        # Settings of these names are lists in every probe: checked once, for all of them.
        for name in ("layers", "steps", "heads", "groups", "hidden"):
            if hasattr(self, name):
                object.__setattr__(self, name, check_positions(name, getattr(self, name)))
        for name in ("every", "k"):
            if hasattr(self, name):
                object.__setattr__(self, name, check_count(getattr(self, name), name))
        if self.steps is not None and not any(self.at_step(step) for step in self.steps):
            raise SpecError(
                f"steps={list(self.steps)} has no step that every={self.every} divides: "
                "leave one of them out"
            )

    def reads(self, layer: int, step: int) -> bool:
        """Whether it needs this layer's call, to keep it or what comes later."""
        return self.looks_at(layer, step)

    def looks_at(self, layer: int, step: int) -> bool:
        return (self.layers is None or layer in self.layers) and self.at_step(step)

    def at_step(self, step: int) -> bool:
        return (self.steps is None or step in self.steps) and step % self.every == 0

    def fields(self, shape: RunShape) -> Iterator[Field]:
        """What it adds to a trace of this shape."""
        raise NotImplementedError

    def request(self, wanted: StatRequest, call: CallReading) -> None:
        """Ask for statistics of a call's attention map; the attention received is always there."""

    def observe(self, call: CallReading) -> None:
        """See one call of a layer that it reads, after the map was reduced."""
        if self.looks_at(call.layer, call.step):
            for reading in call.sequences:
                self.collect(reading)

    def collect(self, reading: SequenceReading) -> None:
        """Keep the numbers of one sequence in one call."""

    def collect_states(self, reading: StateReading) -> None:
        """Keep numbers of one sequence's residual stream before a layer, if it `reads_states`."""

    def collect_keys(self, reading: KeyReading) -> None:
        """Keep numbers of one sequence's keys and values in one call, if it `reads_keys`."""

    def collect_experts(self, reading: ExpertReading) -> None:
        """Keep numbers of the experts that one sequence chose, if it `reads_experts`."""

    @property
    def reads_states(self) -> bool:
        """Whether it reads the residual stream, which attention calls do not carry."""
        return False

    @property
    def reads_experts(self) -> bool:
        """Whether it reads which experts of a mixture each row chose."""
        return False

    @property
    def reads_before_rotary(self) -> bool:
        """Whether it reads queries and keys as they are before rotary positions."""
        return False

    @property
    def needs_all_rows(self) -> bool:
        """Whether a pass must bring all rows at once, which a cache does not."""
        return False

    def query_groups(self, regions: tuple[str, ...]) -> tuple[str, ...]:
        """Groups of queries over which it needs the attention received."""
        return ()

    @property
    def coordinates(self) -> dict[str, list[str]]:
        """Names along those of its axes that have names."""
        return {}

    @property
    def common(self) -> tuple[Any, ...]:
        """What two probes of its kind must share, their arrays being the same."""
        return ()

    def as_dict(self) -> dict[str, Any]:
        """Name and fields, for the manifest."""
        fields = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}
        if self.every == 1:  # as manifests were before there was such a setting
            del fields["every"]
        return {"name": type(self).__name__} | fields

    def as_word(self) -> str:
        """As it is written on the command line; settings that have their default are left out.

        >>> pattern(layers=[2, 5], steps=[0]).as_word()
        'pattern:layers=2+5,steps=0'
        """
        usual = {setting.name: setting.default for setting in dataclasses.fields(self)}
        words = []
        for name, value in vars(self).items():
            word = "+".join(map(str, value)) if isinstance(value, tuple) else str(value)
            if value != usual[name]:
                words.append(f"{name}={word.lower() if isinstance(value, bool) else word}")
        return f"{type(self).__name__}{':' if words else ''}{','.join(words)}"

    def __repr__(self) -> str:
        """As it is written in Python; settings that have their default are left out."""
        usual = {setting.name: setting.default for setting in dataclasses.fields(self)}
        changed = [
            f"{name}={value!r}" for name, value in vars(self).items() if value != usual[name]
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


PROBES: dict[str, type[Probe]] = {}
"""Every probe by its name."""

_Kind = TypeVar("_Kind", bound=type[Probe])


def register_probe(kind: _Kind) -> _Kind:
    """Make a probe known to Python, manifests and the command line, by its class's name."""
    if kind.__name__ in PROBES:
        raise SpecError(f"there is a probe {kind.__name__} already: name it otherwise")
    PROBES[kind.__name__] = kind
    return kind


@register_probe
@dataclass(frozen=True, repr=False)
class received(Probe):  # noqa: N801
    """Share of attention each key receives, by query group; sums to one over keys.

    Adds received, queries, hidden_rows; sink_received where the model has a sink token.
    """

    groups: tuple[str, ...] = ("all", "masked", "written")
    _: KW_ONLY
    dtype: str = "float16"
    """How it is stored: float16 halves the file, float32 keeps all; in memory it is float32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in ("float16", "float32"):
            raise SpecError(f"dtype={self.dtype!r} cannot be stored: expected float16 or float32")

    cheaper: ClassVar[Mapping[str, str]] = {"received": "received(groups=('all',))"}

    @property
    def common(self) -> tuple[Any, ...]:
        return (self.groups, self.dtype)

    @property
    def coordinates(self) -> dict[str, list[str]]:
        return {"group": list(self.groups)}

    def query_groups(self, regions: tuple[str, ...]) -> tuple[str, ...]:
        return self.groups

    def fields(self, shape: RunShape) -> Iterator[Field]:
        dims = ("step", "layer", "head", "group", "key")
        says = "mean over the group's queries of the attention a key receives"
        says += " (received(dtype='float32') keeps all)" if self.dtype == "float16" else ""
        unit = "share of attention"
        yield field("received", dims, self.dtype, unit, says, shape, len(self.groups))
        if shape.sink:
            says = "mean over the group's queries of the attention that added keys receive"
            yield field("sink_received", dims[:-1], "float32", unit, says, shape, len(self.groups))
        says = "queries of each group; times `received` it is the papers' column sum"
        yield field("queries", ("step", "group"), "int32", "queries", says, shape, len(self.groups))
        says = "rows that may look at nothing, left out of every mean"
        yield field("hidden_rows", ("step", "layer"), "int32", "queries", says, shape)

    def collect(self, reading: SequenceReading) -> None:
        sums, view = reading.sums, reading.view
        # `sums` have the groups of all probes; these are the ones of this probe.
        chosen = [reading.groups.index(group) for group in self.groups]
        reading.put("received", sums.mean_received()[:, chosen], slice(None), reading.keys)
        # What sink tokens receive stands apart: received sums to one less this share.
        if reading.keeps("sink_received"):
            sink = sums.sink / sums.counts.where(sums.counts > 0, NAN)
            reading.put("sink_received", sink[:, chosen])
        reading.put_at("queries", (view.step,), sums.counts[chosen])
        live = int(reading.stats.live[view.row, view.query_slice].sum())
        reading.put_at("hidden_rows", (view.step, reading.layer), view.queries - live)


@register_probe
@dataclass(frozen=True, repr=False)
class entropy(Probe):  # noqa: N801
    """Entropy of attention rows, in nats: the mean over queries, or every row.

    Adds entropy; row_entropy with `rows=True` (with a cache, only of rows new at a step).
    """

    _: KW_ONLY
    rows: bool = False

    adds_up: ClassVar[bool] = True
    cheaper: ClassVar[Mapping[str, str]] = {"row_entropy": "entropy(rows=False)"}

    def fields(self, shape: RunShape) -> Iterator[Field]:
        per = ("step", "layer", "head")
        yield field("entropy", per, "float32", "nats", "mean entropy of attention rows", shape)
        if self.rows:
            says = "entropy of each attention row"
            yield field("row_entropy", (*per, "query"), "float32", "nats", says, shape)

    def request(self, wanted: StatRequest, call: CallReading) -> None:
        wanted.entropy = True

    def collect(self, reading: SequenceReading) -> None:
        reading.put("entropy", reading.sums.entropy / reading.live_rows)
        assert reading.stats.entropy is not None
        if self.rows:
            rows = reading.stats.entropy[reading.view.row][:, reading.view.query_slice]
            reading.put("row_entropy", rows, reading.new_rows)


@register_probe
@dataclass(frozen=True, repr=False)
class diagonal(Probe):  # noqa: N801
    """Attention of positions to themselves: the mean over queries, or every row.

    Adds diagonal; row_diagonal with `rows=True` (with a cache, only of rows new at a step).
    """

    _: KW_ONLY
    rows: bool = False

    adds_up: ClassVar[bool] = True
    cheaper: ClassVar[Mapping[str, str]] = {"row_diagonal": "diagonal(rows=False)"}

    def fields(self, shape: RunShape) -> Iterator[Field]:
        per = ("step", "layer", "head")
        unit = "share of attention"
        yield field("diagonal", per, "float32", unit, "mean attention to oneself", shape)
        if self.rows:
            says = "attention of each position to itself"
            yield field("row_diagonal", (*per, "query"), "float32", unit, says, shape)

    def request(self, wanted: StatRequest, call: CallReading) -> None:
        wanted.diagonal = True

    def collect(self, reading: SequenceReading) -> None:
        reading.put("diagonal", reading.sums.diagonal / reading.live_rows)
        assert reading.stats.diagonal is not None
        if self.rows:
            rows = reading.stats.diagonal[reading.view.row][:, reading.view.query_slice]
            reading.put("row_diagonal", rows, reading.new_rows)


@register_probe
@dataclass(frozen=True, repr=False)
class distance(Probe):  # noqa: N801
    """Attention by distance between query and key: the mean over queries of the mass at |i - j|.

    Adds distance_mass.
    """

    adds_up: ClassVar[bool] = True

    def fields(self, shape: RunShape) -> Iterator[Field]:
        dims = ("step", "layer", "head", "distance")
        says = "mean over queries of the attention at a distance"
        yield field("distance_mass", dims, "float32", "share of attention", says, shape)

    def request(self, wanted: StatRequest, call: CallReading) -> None:
        wanted.distance = True

    def collect(self, reading: SequenceReading) -> None:
        reading.put("distance_mass", reading.sums.distance / reading.live_rows, reading.keys)


@register_probe
@dataclass(frozen=True, repr=False)
class top_keys(Probe):  # noqa: N801
    """The k keys a row looks at most: of rows that predicted a committed token, or of all.

    Adds commit_top_key, commit_top_mass; with `every_row=True` row_top_key and row_top_mass
    instead (with a cache, only of rows new at a step).
    """

    k: int = 8
    _: KW_ONLY
    every_row: bool = False

    cheaper: ClassVar[Mapping[str, str]] = {
        "row_top_key": "top_keys(every_row=False)",
        "row_top_mass": "top_keys(every_row=False)",
    }

    @property
    def common(self) -> tuple[Any, ...]:
        return (self.k,)

    def fields(self, shape: RunShape) -> Iterator[Field]:
        dims: tuple[str, ...] = ("layer", "head", "position", "rank")
        name, of = "commit", "the row that predicted the token committed here"
        if self.every_row:
            dims, name, of = ("step", "layer", "head", "query", "rank"), "row", "each row"
        says = f"keys that {of} looked at most" + ("; -2 is an added key" if shape.sink else "")
        yield field(f"{name}_top_key", dims, "int32", "position", says, shape, self.k)
        says = f"attention of {of} to those keys"
        unit = "share of attention"
        yield field(f"{name}_top_mass", dims, "float16", unit, says, shape, self.k)

    def request(self, wanted: StatRequest, call: CallReading) -> None:
        wanted.top = max(wanted.top, self.k)
        if self.every_row:
            wanted.top_rows = None

    def collect(self, reading: SequenceReading) -> None:
        view, stats = reading.view, reading.stats
        assert stats.top_key is not None and stats.top_mass is not None
        columns = stats.top_key[view.row, :, view.query_slice, : self.k]
        # From columns of the call to canvas positions: -2 is an added key, -1 no key at all.
        keys = columns - view.key_start
        keys = keys.masked_fill(keys < 0, -2).masked_fill(columns < 0, -1)
        mass = stats.top_mass[view.row, :, view.query_slice, : self.k]
        if self.every_row:
            reading.put("row_top_key", keys, reading.new_rows)
            reading.put("row_top_mass", mass, reading.new_rows)
        else:
            reading.keep_for_commit("commit_top_key", keys)
            reading.keep_for_commit("commit_top_mass", mass)


@register_probe
@dataclass(frozen=True, repr=False)
class commit_regions(Probe):  # noqa: N801
    """Attention to each region, of the rows that predicted a committed token.

    Adds commit_region_mass.
    """

    needs_regions: ClassVar[bool] = True

    def fields(self, shape: RunShape) -> Iterator[Field]:
        dims = ("layer", "head", "position", "key_region")
        says = "attention to a region, of the row that predicted the token committed here"
        yield field("commit_region_mass", dims, "float32", "share of attention", says, shape)

    def request(self, wanted: StatRequest, call: CallReading) -> None:
        wanted.spans = call.region_columns()

    def collect(self, reading: SequenceReading) -> None:
        assert reading.stats.spans is not None
        rows = reading.stats.spans[reading.view.row, :, reading.view.query_slice]
        reading.keep_for_commit("commit_region_mass", rows)


@register_probe
@dataclass(frozen=True, repr=False)
class region_flow(Probe):  # noqa: N801
    """Attention from region to region: mean over the one's queries, sum over the other's keys.

    Adds region_flow.
    """

    needs_regions: ClassVar[bool] = True

    def fields(self, shape: RunShape) -> Iterator[Field]:
        dims = ("step", "layer", "head", "query_region", "key_region")
        says = "mean over a region's queries of the attention to a region"
        yield field("region_flow", dims, "float32", "share of attention", says, shape)

    def query_groups(self, regions: tuple[str, ...]) -> tuple[str, ...]:
        return regions

    def collect(self, reading: SequenceReading) -> None:
        # [H, query region, L] mean attention received, times [L, key region] membership.
        chosen = [reading.groups.index(name) for name in reading.regions.names]
        received_by_key = reading.sums.mean_received()[:, chosen]
        reading.put("region_flow", received_by_key @ reading.region_members().float())


@register_probe
@dataclass(frozen=True, repr=False)
class region_rollout(Probe):  # noqa: N801
    """Attention rollout to regions, without a map: X <- (X + mean over heads of A X) / 2.

    Adds region_rollout.
    """

    needs_regions: ClassVar[bool] = True
    hidden: tuple[int, ...] = ()
    """Positions whose columns are taken out, rows renormalised (anchors removed)."""

    @property
    def common(self) -> tuple[Any, ...]:
        return (self.hidden,)

    @property
    def needs_all_rows(self) -> bool:
        return True

    def reads(self, layer: int, step: int) -> bool:
        return self.at_step(step)  # a layer's rollout begins with the first layer

    def fields(self, shape: RunShape) -> Iterator[Field]:
        dims = ("step", "layer", "query_region", "key_region")
        says = "mean over a region's queries of the rollout to a region, up to and with this layer"
        yield field("region_rollout", dims, "float32", "share", says, shape)

    def request(self, wanted: StatRequest, call: CallReading) -> None:
        if "rollout" not in call.memory:
            call.memory["rollout"] = call.region_columns()  # X of the first layer: the regions
        wanted.mixed = call.memory["rollout"]
        wanted.hidden = call.columns_at(self.hidden) if self.hidden else None

    def observe(self, call: CallReading) -> None:
        rollout, mixed = call.memory["rollout"], call.stats.mixed
        assert mixed is not None
        first = rollout.shape[1] - mixed.shape[1]  # added keys are no rows: they keep what they are
        rollout[:, first:] = (rollout[:, first:] + mixed) / 2
        super().observe(call)

    def collect(self, reading: SequenceReading) -> None:
        view, members = reading.view, reading.region_members()
        states = reading.call_reading.memory["rollout"][view.row, view.key_slice]
        for region in range(members.shape[1]):
            inside = members[:, region]
            mean = states[inside].mean(dim=0) if bool(inside.any()) else states[0] * NAN
            reading.put_at("region_rollout", (view.step, reading.layer, region), mean)


@register_probe
@dataclass(frozen=True, repr=False)
class qk_geometry(Probe):  # noqa: N801
    """Per key the mean cosine, mean norm product and mean logit over queries; no T x T work.

    Adds query_norm, peak_key, peak_received, and of cosine, norm_product and logit the mean over
    keys and peak_cosine, peak_norm_product, peak_logit at the eight keys that receive most;
    `keys=True` adds each_cosine, each_norm_product and each_logit. `rotary="before"` measures
    before rotary positions, under the same names ending in _before_rotary.
    """

    _: KW_ONLY
    keys: bool = False
    rotary: str = "after"

    needs_query_sums: ClassVar[bool] = True
    cheaper: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("each_cosine", "each_norm_product", "each_logit"), "qk_geometry(keys=False)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rotary not in ("after", "before"):
            raise SpecError(f"rotary={self.rotary!r} is unknown: expected 'after' or 'before'")

    @property
    def reads_before_rotary(self) -> bool:
        return self.rotary == "before"

    @property
    def needs_all_rows(self) -> bool:
        return self.rotary == "before"

    def fields(self, shape: RunShape) -> Iterator[Field]:
        per = ("step", "layer", "head")
        suffix = "" if self.rotary == "after" else "_before_rotary"
        what = {
            "cosine": ("cosine", "mean over queries of cos(q, k)"),
            "norm_product": ("norm squared", "mean over queries of |q| |k|"),
            "logit": ("logit", "mean over queries of the scaled product of q and k"),
        }
        says = "mean norm of the queries"
        yield field(f"query_norm{suffix}", per, "float32", "norm", says, shape)
        yield from peak_fields(shape)
        for name, (unit, says) in what.items():
            yield from summary(f"{name}{suffix}", unit, says, shape, keys=self.keys)

    def collect(self, reading: SequenceReading) -> None:
        # 1. Sums over query rows of q, q / |q| and |q|: [H, D], [H, D], [H].
        sums, suffix = reading.sums, ""
        query, unit_query, length = sums.query, sums.unit_query, sums.query_norm
        key = reading.key
        if self.rotary == "before":
            suffix = "_before_rotary"
            rows, key = reading.before_rotary()
            each = rows.norm(dim=-1)
            query, length = rows.sum(dim=1), each.sum(dim=1)
            unit_query = (rows / each.clamp(min=1e-30)[..., None]).sum(dim=1)
        # 2. A mean of products with a key is the product of the mean with that key.
        count = reading.live_rows
        key = key.float()
        norm = reading.key_norm
        if self.rotary == "before":
            repeats = query.shape[0] // key.shape[0]
            norm = key.norm(dim=-1).repeat_interleave(repeats, dim=0)
        measured = {
            "cosine": _times_keys(unit_query / count, key) / norm.clamp(min=1e-30),
            "norm_product": (length / count)[:, None] * norm,
            "logit": _times_keys(query / count, key) * reading.call.scale,
        }
        # 3. Kept as a mean over keys, at the peaks, and at every key if asked for.
        reading.put(f"query_norm{suffix}", length / count)
        reading.put_summaries({f"{name}{suffix}": values for name, values in measured.items()})


def _times_keys(mean: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """[H, L] products of one vector [H, D] with the keys [G, L, D] of each head's group."""
    grouped = mean.view(key.shape[0], mean.shape[0] // key.shape[0], -1)
    return grouped.bmm(key.transpose(1, 2)).reshape(mean.shape[0], -1)


@register_probe
@dataclass(frozen=True, repr=False)
class norms(Probe):  # noqa: N801
    """Norms of keys and values: a mean over keys and at the eight keys that receive most, or all.

    Adds peak_key, peak_received, key_norm, value_norm, peak_key_norm, peak_value_norm; `keys=True`
    each_key_norm, each_value_norm; `contribution=True` contribution_norm, of each value carried
    through the output projection; `residual=True` residual_norm, of each position's residual
    stream before the layer (with a cache, only of rows new at a step); `sink=True`
    sink_value_norm, of the values that sink tokens add, mean over them.
    """

    _: KW_ONLY
    keys: bool = False
    contribution: bool = False
    residual: bool = False
    sink: bool = False

    cheaper: ClassVar[Mapping[str, str]] = {
        "residual_norm": "norms(residual=False)",
        "each_key_norm": "norms(keys=False)",
        "each_value_norm": "norms(keys=False)",
        "each_contribution_norm": "norms(keys=False)",
    }

    @property
    def reads_states(self) -> bool:
        return self.residual

    def fields(self, shape: RunShape) -> Iterator[Field]:
        yield from peak_fields(shape)
        kinds = {"key_norm": "norm of a key", "value_norm": "norm of a value"}
        if self.contribution:
            kinds["contribution_norm"] = "norm of a value through the output projection"
        for name, says in kinds.items():
            yield from summary(name, "norm", says, shape, keys=self.keys)
        if self.residual:
            dims = ("step", "layer", "position")
            says = "norm of the residual stream before the layer"
            yield field("residual_norm", dims, "float32", "norm", says, shape)
        if self.sink and shape.sink:
            says = "norm of the values of added keys, mean over them"
            yield field(
                "sink_value_norm", ("step", "layer", "head"), "float32", "norm", says, shape
            )

    def collect(self, reading: SequenceReading) -> None:
        heads = reading.query.shape[0]
        value = reading.value.float()
        repeats = heads // value.shape[0]  # an edited value may differ from head to head
        measured = {
            "key_norm": reading.key_norm,
            "value_norm": value.norm(dim=-1).repeat_interleave(repeats, dim=0),
        }
        # |W v| by head: each head has its own slice of the output projection.
        if self.contribution:
            each = value.repeat_interleave(repeats, dim=0)
            measured["contribution_norm"] = reading.contribution_norm(each)
        reading.put_summaries(measured)
        # Added keys stand before the canvas.
        added = reading.added_values
        if self.sink and added.shape[1]:
            norm = added.float().norm(dim=-1).mean(dim=-1)
            reading.put("sink_value_norm", norm.repeat_interleave(heads // len(norm), dim=0))

    def collect_states(self, reading: StateReading) -> None:
        # With a cache earlier rows had their norm at an earlier step.
        norm = reading.states.float().norm(dim=-1)
        reading.put("residual_norm", norm, reading.new_rows)


@register_probe
@dataclass(frozen=True, repr=False)
class drift(Probe):  # noqa: N801
    """How much each key and value changes between two steps: |x now - x then| / |x then|.

    Adds key_drift, value_drift. Two steps are those that it looks at one after another; the first
    has no value. Rotary positions change no drift. Under an approximate cache rows that a step did
    not compute have none: absent, not zero.
    """

    needs_map: ClassVar[bool] = False
    reads_keys: ClassVar[bool] = True

    def fields(self, shape: RunShape) -> Iterator[Field]:
        dims = ("step", "layer", "kv_head", "key")
        for name in ("key", "value"):
            says = f"change of a {name} since the step before, relative to its norm then"
            yield field(f"{name}_drift", dims, "float32", "share of the norm", says, shape)

    def collect_keys(self, reading: KeyReading) -> None:
        for name, now in (("key", reading.key), ("value", reading.value)):
            then = reading.recall(name, now)
            if then is None:
                continue
            # In autoregression there are more positions now than then.
            count = min(now.shape[1], then.shape[1])
            change = (now[:, :count] - then[:, :count]).norm(dim=-1)
            share = change / then[:, :count].norm(dim=-1).clamp(min=1e-30)
            reading.put(f"{name}_drift", share.masked_fill(~reading.computed[:count], NAN), count)


@register_probe
@dataclass(frozen=True, repr=False)
class massive(Probe):  # noqa: N801
    """The k largest residual activations before each layer, and the median they stand out from.

    Adds massive_value, massive_position, massive_channel, massive_median.
    """

    k: int = 3

    needs_map: ClassVar[bool] = False
    needs_all_states: ClassVar[bool] = True

    @property
    def reads_states(self) -> bool:
        return True

    def fields(self, shape: RunShape) -> Iterator[Field]:
        per = ("step", "layer", "outlier")
        what = {
            "massive_value": ("float32", "activation", "largest residual activations, signed"),
            "massive_position": ("int32", "position", "where they are"),
            "massive_channel": ("int32", "channel", "which channel they are in"),
        }
        for name, (dtype, unit, says) in what.items():
            yield field(name, per, dtype, unit, says, shape, self.k)
        says = "median of the absolute residual activations"
        yield field("massive_median", per[:2], "float32", "activation", says, shape)

    def collect_states(self, reading: StateReading) -> None:
        states = reading.all_states
        # Position and channel are the two digits of an index into the flat states.
        flat = states.float().flatten()
        best = flat.abs().topk(min(self.k, len(flat))).indices
        measured = {
            "massive_value": (flat[best], NAN),
            "massive_position": (best // states.shape[1], -1),
            "massive_channel": (best % states.shape[1], -1),
        }
        for name, (values, absent) in measured.items():
            padded = values.new_full((self.k,), absent)
            padded[: len(best)] = values
            reading.put(name, padded)
        reading.put("massive_median", flat.abs().median())


@register_probe
@dataclass(frozen=True, repr=False)
class mixing(Probe):  # noqa: N801
    """How alike the states of different positions are: mean pairwise cosine and effective rank.

    Adds state_cosine, effective_rank.
    """

    needs_map: ClassVar[bool] = False
    needs_all_states: ClassVar[bool] = True

    @property
    def reads_states(self) -> bool:
        return True

    def fields(self, shape: RunShape) -> Iterator[Field]:
        per = ("step", "layer")
        says = "mean cosine between the residual states of two positions before the layer"
        yield field("state_cosine", per, "float32", "cosine", says, shape)
        says = "exponential of the entropy of the normalised singular values of those states"
        yield field("effective_rank", per, "float32", "dimensions", says, shape)

    def collect_states(self, reading: StateReading) -> None:
        # |sum of unit vectors|^2 is the cosine of all pairs, and of each state with itself.
        states = reading.all_states.float()
        unit = states / states.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        count, total = len(unit), unit.sum(dim=0).pow(2).sum()
        cosine = (total - count) / (count * (count - 1)) if count > 1 else total * NAN
        reading.put("state_cosine", cosine)
        # exp of the entropy of the singular values, normalised to a sum of one.
        share = reading.singular_values(states)
        share = share / share.sum().clamp(min=1e-30)
        reading.put("effective_rank", (-(share * share.clamp(min=1e-30).log()).sum()).exp())


@register_probe
@dataclass(frozen=True, repr=False)
class experts(Probe):  # noqa: N801
    """Which experts of a mixture each position goes through, and how often each one is chosen.

    Adds expert_count by query group; expert_choice, of every position, unless `each=False`: with it
    the experts of any set of positions can be counted afterwards, those of sinks for one. Dense
    layers are absent, and with a cache only rows new at a step are counted.
    """

    groups: tuple[str, ...] = ("all", "masked", "written", "prompt")
    _: KW_ONLY
    each: bool = True

    needs_map: ClassVar[bool] = False
    cheaper: ClassVar[Mapping[str, str]] = {"expert_choice": "experts(each=False)"}

    @property
    def reads_experts(self) -> bool:
        return True

    @property
    def common(self) -> tuple[Any, ...]:
        return (self.groups, self.each)

    @property
    def coordinates(self) -> dict[str, list[str]]:
        return {"query_group": list(self.groups)}

    def query_groups(self, regions: tuple[str, ...]) -> tuple[str, ...]:
        return self.groups

    def fields(self, shape: RunShape) -> Iterator[Field]:
        per, sizes = ("step", "layer"), (shape.steps, shape.layers)
        says = "rows of a query group that chose an expert"
        dims = (*per, "query_group", "expert")
        counted = (*sizes, len(self.groups), shape.experts)
        yield Field("expert_count", dims, "int32", "rows", says, counted)
        if self.each:
            says = "experts that a position chose, in the order that the router gives them"
            dims = (*per, "position", "choice")
            chosen = (*sizes, shape.positions, shape.experts_per_token)
            yield Field("expert_choice", dims, "int16", "expert", says, chosen)

    def collect_experts(self, reading: ExpertReading) -> None:
        groups = [reading.groups.index(group) for group in self.groups]
        reading.put("expert_count", reading.counts[groups])
        if self.each:
            reading.put("expert_choice", reading.chosen, reading.new_rows)


@dataclass(frozen=True, repr=False)
class _HeadMaps(Probe):
    """Maps [query, key] of named layers, heads and steps, one after another along `pick_dim`."""

    _: KW_ONLY
    heads: tuple[int, ...] | None = None

    pick_dim: ClassVar[str] = "pick"

    @property
    def common(self) -> tuple[Any, ...]:
        return (self.layers, self.steps, self.every, self.heads)

    def picks(self, shape: RunShape) -> list[tuple[int, int, int]]:
        """(step, layer, head) of each map, in order."""
        steps = [step for step in self.steps or range(shape.steps) if self.at_step(step)]
        layers = range(shape.layers) if self.layers is None else self.layers
        heads = range(shape.heads) if self.heads is None else self.heads
        return [(step, layer, head) for step in steps for layer in layers for head in heads]

    def pick_fields(self, shape: RunShape) -> Iterator[Field]:
        """Which step, layer and head each map is of."""
        count = len(self.picks(shape))
        for name in ("step", "layer", "head"):
            of = f"{self.pick_dim}_{name}"
            yield field(of, (self.pick_dim,), "int32", name, f"{name} of each pick", shape, count)

    def put_maps(self, reading: SequenceReading, maps: Mapping[str, torch.Tensor]) -> None:
        """Keep maps [head, query, key] of the heads that are named, by the name of their field."""
        view = reading.view
        picks = {pick: i for i, pick in enumerate(self.picks(reading.shape))}
        heads = self.heads or tuple(range(reading.query.shape[0]))
        for index, head in enumerate(heads):
            pick = picks.get((view.step, reading.layer, head))
            if pick is None:
                continue
            for name, kept in maps.items():
                reading.put_at(name, (pick, reading.new_rows, reading.keys), kept[index])
            for name, value in (("step", view.step), ("layer", reading.layer), ("head", head)):
                reading.put_at(f"{self.pick_dim}_{name}", (pick,), value)


@register_probe
@dataclass(frozen=True, repr=False)
class pattern(_HeadMaps):  # noqa: N801
    """The full map of named layers, heads and steps. It is large: `aw.plan` says how large.

    Adds pattern (with a cache, only rows new at a step), pick_step, pick_layer, pick_head.
    """

    cheaper: ClassVar[Mapping[str, str]] = {
        "pattern": "name fewer layers, heads or steps, or keep `received`"
    }

    def fields(self, shape: RunShape) -> Iterator[Field]:
        picks, dims = len(self.picks(shape)), ("pick", "query", "key")
        says = "attention probabilities of one (step, layer, head)"
        yield field("pattern", dims, "float32", "share of attention", says, shape, picks)
        yield from self.pick_fields(shape)

    def request(self, wanted: StatRequest, call: CallReading) -> None:
        wanted.maps = self.heads or tuple(range(call.num_heads))

    def collect(self, reading: SequenceReading) -> None:
        view, maps = reading.view, reading.stats.maps
        assert maps is not None
        self.put_maps(reading, {"pattern": maps[view.row, :, view.query_slice, view.key_slice]})


@register_probe
@dataclass(frozen=True, repr=False)
class qk_maps(_HeadMaps):  # noqa: N801
    """Query against key of named layers, heads and steps: three maps, logit = cosine x norms.

    Adds qk_logit (q k scale, before the softmax), qk_cosine, qk_norm_product (|q| |k|), each
    [pick, query, key] and also of pairs that may not look at each other; qk_pick_step,
    qk_pick_layer, qk_pick_head. With a cache only rows new at a step.
    """

    pick_dim: ClassVar[str] = "qk_pick"
    needs_map: ClassVar[bool] = True
    cheaper: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("qk_logit", "qk_cosine", "qk_norm_product"),
        "name fewer layers, heads or steps, or keep `qk_geometry(keys=True)`",
    )

    def fields(self, shape: RunShape) -> Iterator[Field]:
        picks, dims = len(self.picks(shape)), (self.pick_dim, "query", "key")
        what = {
            "qk_logit": ("logit", "scaled product of a query and a key"),
            "qk_cosine": ("cosine", "cosine of a query and a key"),
            "qk_norm_product": ("norm squared", "norm of a query times norm of a key"),
        }
        for name, (unit, says) in what.items():
            yield field(name, dims, "float32", unit, says, shape, picks)
        yield from self.pick_fields(shape)

    def collect(self, reading: SequenceReading) -> None:
        # 1. Queries and keys of the named heads; a key head serves several heads.
        heads = list(self.heads or range(reading.query.shape[0]))
        query = reading.query.float()
        key = reading.key.float().repeat_interleave(query.shape[0] // reading.key.shape[0], dim=0)
        query, key = query[heads], key[heads]
        # 2. The product, and its two factors.
        dot = query @ key.transpose(1, 2)
        norms = query.norm(dim=-1)[:, :, None] * key.norm(dim=-1)[:, None, :]
        self.put_maps(
            reading,
            {
                "qk_logit": dot * reading.call.scale,
                "qk_cosine": dot / norms.clamp(min=1e-30),
                "qk_norm_product": norms,
            },
        )


def from_dict(fields: Mapping[str, Any]) -> Probe:
    """The probe a manifest describes; the inverse of `as_dict`."""
    # A manifest may come from another version: unknown settings are refused by name.
    rest = dict(fields)
    name = rest.pop("name", None)
    if name not in PROBES:
        raise SpecError(f"no probe is called {name!r}: expected one of {', '.join(PROBES)}")
    known = {setting.name for setting in dataclasses.fields(PROBES[name])}
    if unknown := sorted(set(rest) - known):
        raise SpecError(f"{name} has no {', '.join(unknown)}: it takes {', '.join(sorted(known))}")
    return PROBES[name](**rest)


def find_probe(name: str) -> str | None:
    """The probe that adds a field to a trace without being given any setting; None if none does."""
    shape = RunShape(1, 1, 1, 1, 1, regions=("region",), sink=True)
    absent = (dataclasses.MISSING, dataclasses.MISSING)
    for kind in PROBES.values():
        settings = dataclasses.fields(kind)
        if any((setting.default, setting.default_factory) == absent for setting in settings):
            continue  # it cannot be made without a setting
        if any(added.name == name for added in kind().fields(shape)):
            return kind.__name__
    return None


DEFAULT: tuple[Probe, ...] = (
    received(),
    entropy(),
    diagonal(),
    qk_geometry(),
    norms(),
    top_keys(),
)
"""What a run measures without asking: under 1 GB for 128 steps, 32 layers, 32 heads, T = 1024."""


def measure_every(steps: int, probes: Sequence[Probe] = DEFAULT) -> tuple[Probe, ...]:
    """The probes, each at every k-th step only: a run costs less, its trace is as large.

    >>> measure_every(8, [received(), entropy()])
    (received(every=8), entropy(every=8))
    """
    return tuple(dataclasses.replace(probe, every=steps) for probe in probes)
