"""What to measure, as frozen values named like the quantity they measure. No torch here.

A probe is reduced on the spot: no T x T map is ever held, except by `pattern`, by name. Each value
states its fields (dims, dtype, unit) for a run of a given shape, so that `aw.plan` can say the
bytes before anything runs. Sums over keys are over the canvas; a sink token's share is kept apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

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

__all__ = [
    "DEFAULT",
    "GROUPS",
    "PROBES",
    "Probe",
    "commit_regions",
    "diagonal",
    "distance",
    "entropy",
    "from_dict",
    "massive",
    "mixing",
    "norms",
    "pattern",
    "qk_geometry",
    "received",
    "region_flow",
    "region_rollout",
    "top_keys",
]

GROUPS = ("all", "masked", "written", "prompt")
"""Query groups every run has; region names are groups too."""


@dataclass(frozen=True, repr=False)
class Probe:
    """What every probe has in common: the layers and steps it looks at (None: all of them)."""

    _: KW_ONLY
    layers: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = None

    needs_map: ClassVar[bool] = True
    """Whether it reads attention probabilities (one more pass over queries and keys)."""
    needs_regions: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("layers", "steps", "heads", "groups", "hidden"):
            if hasattr(self, name):
                object.__setattr__(self, name, check_positions(name, getattr(self, name)))
        if hasattr(self, "k"):
            object.__setattr__(self, "k", check_count(self.k))

    def reads(self, layer: int, step: int) -> bool:
        """Whether it needs this layer's call, to keep it or what comes later."""
        return self.looks_at(layer, step)

    def looks_at(self, layer: int, step: int) -> bool:
        return (self.layers is None or layer in self.layers) and self.at_step(step)

    def at_step(self, step: int) -> bool:
        return self.steps is None or step in self.steps

    def fields(self, shape: RunShape) -> Iterator[Field]:
        """What it adds to a trace of this shape."""
        raise NotImplementedError

    @property
    def common(self) -> tuple[Any, ...]:
        """What two probes of its kind must share, their arrays being the same."""
        return ()

    def as_dict(self) -> dict[str, Any]:
        """Name and fields, for the manifest."""
        fields = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}
        return {"name": type(self).__name__} | fields

    def __repr__(self) -> str:
        """As it was asked for: what is as always is left out."""
        usual = {one.name: one.default for one in dataclasses.fields(self)}
        said = [f"{name}={held!r}" for name, held in vars(self).items() if held != usual[name]]
        return f"{type(self).__name__}({', '.join(said)})"


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

    @property
    def common(self) -> tuple[Any, ...]:
        return (self.groups, self.dtype)

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


@dataclass(frozen=True, repr=False)
class entropy(Probe):  # noqa: N801
    """Entropy of attention rows, in nats: the mean over queries, or every row.

    Adds entropy; row_entropy with `rows=True` (with a cache, only of rows new at a step).
    """

    _: KW_ONLY
    rows: bool = False

    def fields(self, shape: RunShape) -> Iterator[Field]:
        per = ("step", "layer", "head")
        yield field("entropy", per, "float32", "nats", "mean entropy of attention rows", shape)
        if self.rows:
            says = "entropy of each attention row"
            yield field("row_entropy", (*per, "query"), "float32", "nats", says, shape)


@dataclass(frozen=True, repr=False)
class diagonal(Probe):  # noqa: N801
    """Attention of positions to themselves: the mean over queries, or every row.

    Adds diagonal; row_diagonal with `rows=True` (with a cache, only of rows new at a step).
    """

    _: KW_ONLY
    rows: bool = False

    def fields(self, shape: RunShape) -> Iterator[Field]:
        per = ("step", "layer", "head")
        unit = "share of attention"
        yield field("diagonal", per, "float32", unit, "mean attention to oneself", shape)
        if self.rows:
            says = "attention of each position to itself"
            yield field("row_diagonal", (*per, "query"), "float32", unit, says, shape)


@dataclass(frozen=True, repr=False)
class distance(Probe):  # noqa: N801
    """Attention by distance between query and key: the mean over queries of the mass at |i - j|.

    Adds distance_mass.
    """

    def fields(self, shape: RunShape) -> Iterator[Field]:
        dims = ("step", "layer", "head", "distance")
        says = "mean over queries of the attention at a distance"
        yield field("distance_mass", dims, "float32", "share of attention", says, shape)


@dataclass(frozen=True, repr=False)
class top_keys(Probe):  # noqa: N801
    """The k keys a row looks at most: of rows that predicted a committed token, or of all.

    Adds commit_top_key, commit_top_mass; with `every_row=True` row_top_key and row_top_mass
    instead (with a cache, only of rows new at a step).
    """

    k: int = 8
    _: KW_ONLY
    every_row: bool = False

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

    def reads(self, layer: int, step: int) -> bool:
        return self.at_step(step)  # a layer's rollout begins with the first layer

    def fields(self, shape: RunShape) -> Iterator[Field]:
        dims = ("step", "layer", "query_region", "key_region")
        says = "mean over a region's queries of the rollout to a region, up to and with this layer"
        yield field("region_rollout", dims, "float32", "share", says, shape)


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rotary not in ("after", "before"):
            raise SpecError(f"rotary={self.rotary!r} is unknown: expected 'after' or 'before'")

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


@dataclass(frozen=True, repr=False)
class norms(Probe):  # noqa: N801
    """Norms of keys and values: a mean over keys and at the eight keys that receive most, or all.

    Adds peak_key, peak_received, key_norm, value_norm, peak_key_norm, peak_value_norm; `keys=True`
    each_key_norm, each_value_norm; `contribution=True` contribution_norm, of each value carried
    through the output projection; `residual=True` residual_norm, of each position's residual
    stream before the layer (with a cache, only of rows new at a step).
    """

    _: KW_ONLY
    keys: bool = False
    contribution: bool = False
    residual: bool = False

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


@dataclass(frozen=True, repr=False)
class massive(Probe):  # noqa: N801
    """The k largest residual activations before each layer, and the median they stand out from.

    Adds massive_value, massive_position, massive_channel, massive_median.
    """

    k: int = 3

    needs_map: ClassVar[bool] = False

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


@dataclass(frozen=True, repr=False)
class mixing(Probe):  # noqa: N801
    """How alike the states of different positions are: mean pairwise cosine and effective rank.

    Adds state_cosine, effective_rank.
    """

    needs_map: ClassVar[bool] = False

    def fields(self, shape: RunShape) -> Iterator[Field]:
        per = ("step", "layer")
        says = "mean cosine between the residual states of two positions before the layer"
        yield field("state_cosine", per, "float32", "cosine", says, shape)
        says = "exponential of the entropy of the normalised singular values of those states"
        yield field("effective_rank", per, "float32", "dimensions", says, shape)


@dataclass(frozen=True, repr=False)
class pattern(Probe):  # noqa: N801
    """The full map of named layers, heads and steps. It is large: `aw.plan` says how large.

    Adds pattern (with a cache, only rows new at a step), pick_step, pick_layer, pick_head.
    """

    _: KW_ONLY
    heads: tuple[int, ...] | None = None

    @property
    def common(self) -> tuple[Any, ...]:
        return (self.layers, self.steps, self.heads)

    def fields(self, shape: RunShape) -> Iterator[Field]:
        picks, dims = len(self.picks(shape)), ("pick", "query", "key")
        says = "attention probabilities of one (step, layer, head)"
        yield field("pattern", dims, "float32", "share of attention", says, shape, picks)
        for name in ("step", "layer", "head"):
            says = f"{name} of each pick"
            yield field(f"pick_{name}", dims[:1], "int32", name, says, shape, picks)

    def picks(self, shape: RunShape) -> list[tuple[int, int, int]]:
        """(step, layer, head) of each map, in order."""
        steps = range(shape.steps) if self.steps is None else self.steps
        layers = range(shape.layers) if self.layers is None else self.layers
        heads = range(shape.heads) if self.heads is None else self.heads
        return [(step, layer, head) for step in steps for layer in layers for head in heads]


PROBES: dict[str, type[Probe]] = {kind.__name__: kind for kind in Probe.__subclasses__()}


def from_dict(fields: Mapping[str, Any]) -> Probe:
    """The probe a manifest describes; the inverse of `as_dict`."""
    rest = dict(fields)
    name = rest.pop("name", None)
    if name not in PROBES:
        raise SpecError(f"no probe is called {name!r}: expected one of {', '.join(PROBES)}")
    known = {one.name for one in dataclasses.fields(PROBES[name])}
    if unknown := sorted(set(rest) - known):
        raise SpecError(f"{name} has no {', '.join(unknown)}: it takes {', '.join(sorted(known))}")
    return PROBES[name](**rest)


DEFAULT: tuple[Probe, ...] = (
    received(),
    entropy(),
    diagonal(),
    qk_geometry(),
    norms(),
    top_keys(),
)
"""What a run measures without asking: under 1 GB for 128 steps, 32 layers, 32 heads, T = 1024."""


def __dir__() -> list[str]:
    return sorted([*PROBES, "DEFAULT", "GROUPS", "PROBES", "Probe", "from_dict"])
