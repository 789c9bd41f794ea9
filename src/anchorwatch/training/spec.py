"""What to train: SPEC.toml as frozen values, checked before anything is built.

The digest covers all that decides the weights, and nothing that does not: how often a checkpoint is
written or a line logged may change between two starts of one run.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from anchorwatch.errors import SpecError
from anchorwatch.trace.toml_spec import Table, check_table, parse_toml, read_toml

SIZES: dict[str, tuple[int, int, int]] = {
    "6M": (6, 256, 4),
    "19M": (8, 384, 6),
    "34M": (8, 512, 8),
    "48M": (9, 576, 9),
    "66M": (10, 640, 10),
    "85M": (13, 640, 10),
    "113M": (12, 768, 12),
    "170M": (18, 768, 12),
    "231M": (18, 896, 14),
    "336M": (20, 1024, 16),
    "472M": (18, 1280, 10),
    "551M": (21, 1280, 10),
    "831M": (22, 1536, 12),
    "1028M": (20, 1792, 14),
    "1476M": (22, 2048, 16),
    "2121M": (28, 2176, 17),
}
"""SMDM's ladder: (layers, width, heads), named by parameters without embeddings."""

_KEEPERS = ("checkpoints", "log", "workers")
"""Fields that do not decide the weights."""
_ADDED_LATER = {
    "objective": ("keep_start", "continuations"),
    "optimizer": ("fall", "last"),
    "lora": ("from",),
}
"""Fields that earlier records do not have: at their defaults they are left out of the digest."""

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Shape(Table):
    """[model]: a network from scratch, by rung or by numbers; or `from`, a base checkpoint."""

    network: Literal["llama", "qwen2", "qwen3"] = "llama"
    size: str | None = None
    """A rung of SMDM's ladder."""
    layers: Count | None = None
    width: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    """Key-value heads; as many as heads unless said."""
    hidden: Count | None = None
    """Inner width of the MLP; four times the width unless said."""
    positions: Count | None = None
    """The longest canvas; the training length unless said."""
    rotary_base: Positive = 10000.0
    tied: bool = False
    """Whether embedding and unembedding are one."""
    source: str | None = Field(default=None, alias="from")
    """The base checkpoint, as `aw.load` takes it."""
    mask_id: Annotated[int, Field(ge=0)] | None = None
    """The mask token, where the checkpoint does not say."""

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        given = self.model_fields_set - {"source", "mask_id"}
        if self.source is not None and given:
            raise ValueError(f"`from` brings its own shape: leave {', '.join(sorted(given))} out")
        if self.source is None and self.mask_id is not None:
            raise ValueError("mask_id is for `from`: from scratch, the tokenizer says it")
        if self.size is not None:
            if self.size not in SIZES:
                raise ValueError(f"size {self.size!r} is unknown: expected {', '.join(SIZES)}")
            if twice := given & {"layers", "width", "heads"}:
                raise ValueError(f"size says {', '.join(sorted(twice))} already: leave it out")
        elif self.source is None and None in (self.layers, self.width, self.heads):
            raise ValueError("say size = '6M', or layers, width and heads, or from = 'folder'")
        if self.source is None:
            self._check_heads()
        return self

    def _check_heads(self) -> None:
        _, width, heads = self.numbers
        if width % heads or (width // heads) % 2:
            raise ValueError(
                f"width {width} does not give {heads} heads an even number of channels each: "
                f"width {2 * heads * max(1, round(width / heads / 2))} does"
            )
        if self.kv_heads is not None and heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} does not divide {heads} heads")

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Layers, width and heads of a network from scratch."""
        if self.size is not None:
            return SIZES[self.size]
        assert self.layers is not None and self.width is not None and self.heads is not None
        return self.layers, self.width, self.heads

    @property
    def layer_parameters(self) -> int:
        """Numbers in one layer of a network from scratch, but for its norms and biases."""
        _, width, heads = self.numbers
        keys = (self.kv_heads or heads) * (width // heads)
        return 2 * width * width + 2 * width * keys + 3 * width * (self.hidden or 4 * width)


class Objective(Table):
    """[objective]: what the loss asks for."""

    name: Literal["diffusion", "next_token", "fine_tune"] = "diffusion"
    """fine_tune keeps the prompt clear, and the kind of its base checkpoint."""
    t: Literal["stratified", "antithetic", "uniform"] = "stratified"
    """How the times of a batch are drawn."""
    eps: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """The least masking probability: p = (1 - eps) t + eps."""
    masks: Literal["single", "counted"] = "single"
    """Each scored token masked by itself with p; or a count of them that is even over 1..n, weighed
    by n over the count: the same mean without weights of 1 / eps, for rows with few scored."""
    answer_only: Share = 0.0
    """Share of the rows with an answer in which only the answer is scored, the rest kept clear."""
    random_lengths: Share = 0.0
    """Share of the updates whose rows are cut to one length, drawn evenly up to the longest."""
    weigh: Literal["tokens", "rows"] = "tokens"
    """What weighs the same in the mean: each scored token, or each row."""
    keep_start: bool = False
    """Whether the first token of a row is never masked, nor scored."""
    continuations: Share = 0.0
    """Share of the rows of plain text whose first part stays clear and is not scored, as when a
    text is continued; in every second of them the tokens masked are the last ones."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        noise = self.model_fields_set & {"t", "eps", "masks", "keep_start", "continuations"}
        if self.name == "next_token" and noise:
            raise ValueError(f"next_token has no noise: leave {', '.join(sorted(noise))} out")
        if self.masks == "counted" and "eps" in self.model_fields_set:
            raise ValueError("counted masks have no least probability: leave eps out")
        if self.continuations and self.masks != "counted":
            raise ValueError("continuations need a count of masks: say masks = 'counted'")
        if self.name == "fine_tune" and "answer_only" in self.model_fields_set:
            raise ValueError("fine_tune scores the answer only, always: leave answer_only out")
        if self.name == "fine_tune" and self.random_lengths:
            raise ValueError("fine_tune would lose its answers to random_lengths: leave it out")
        return self


class Optimizer(Table):
    """[optimizer]: AdamW, a linear warm-up, then a fall to a floor."""

    lr: Positive = 2e-4
    betas: tuple[Decay, Decay] = Field(default=(0.9, 0.95), strict=False)
    eps: Positive = 1e-8
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    decay_all: bool = False
    """Whether norms, biases and trained parts (gates too) decay; all other matrices always do."""
    warm_up: Count | Share = 0.01
    """Share of the updates; or, a whole number, how many."""
    fall: Literal["cosine", "late"] = "cosine"
    """Along a cosine from the warm-up on; or in a line at the end, for `last` of the updates."""
    last: Share = 0.2
    floor: Share = 0.1
    """The last learning rate, over `lr`."""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """The greatest norm of a gradient."""


class Lora(Table):
    """[lora]: low-rank adapters instead of full weights; trained parts are trained in full."""

    rank: Count = 8
    alpha: Count = 16
    targets: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj"), strict=False, min_length=1
    )
    embeddings: bool | Literal["mask"] | None = None
    """Whether embeddings are trained too, all or the mask token's alone; unless said, all, where
    the mask token is new to them."""
    source: str | None = Field(default=None, alias="from")
    """A delta of the same base checkpoint whose adapters are trained on; unless said, new ones."""


class Checkpoints(Table):
    """[checkpoints]: how often, and how many stay."""

    updates: Count = 500
    minutes: Annotated[float, Field(gt=0)] | None = 10.0
    """The longest time between two; None, in Python, leaves it to the updates."""
    keep: Count = 1
    at: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(), strict=False)
    """Updates after which a snapshot is written that stays."""
    at_tokens: tuple[Count, ...] = Field(default=(), strict=False)
    """Tokens read, after each of which a snapshot is written that stays."""


class Log(Table):
    """[log]: how often the log is written, and where else it goes."""

    every: Count = 10
    tracker: Literal["trackio", "wandb"] | None = None


class Spec(Table):
    """All it takes to train a network."""

    model: Shape
    length: Annotated[int, Field(ge=2)]
    """Positions of the longest row."""
    batch: Count
    """Rows of an update, over all processes and passes."""
    updates: Count
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    accumulation: Count = 1
    """Forward passes that make an update, in each process."""
    precision: Literal["float32", "bf16"] = "float32"
    compile: bool = False
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that prepare rows; 0 does it between updates."""
    objective: Objective = Objective()
    corpus: dict[str, Any] = Field(default={})
    """What `training.corpora` makes a corpus from."""
    variant: tuple[dict[str, Any], ...] = Field(default=(), strict=False)
    """Trained parts, each a table with a name: {name = "gate"}."""
    optimizer: Optimizer = Optimizer()
    lora: Lora | None = None
    checkpoints: Checkpoints = Checkpoints()
    log: Log = Log()

    @field_validator("variant", mode="before")
    @classmethod
    def _check_parts(cls, value: Any) -> Any:
        parts = value if isinstance(value, list | tuple) else [value]
        parts = [{"name": part} if isinstance(part, str) else part for part in parts]
        for part in parts:
            if not isinstance(part, Mapping) or not isinstance(part.get("name"), str):
                raise ValueError(f'{part!r} names no part: expected {{name = "gate"}}')
        return parts

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.batch % self.accumulation:
            raise ValueError(
                f"a batch of {self.batch} rows cannot be {self.accumulation} equal passes: "
                f"say batch = {self.accumulation * max(1, self.batch // self.accumulation)}"
            )
        if self.model.positions is not None and self.length > self.model.positions:
            raise ValueError(
                f"rows of {self.length} positions are longer than the network's "
                f"{self.model.positions}: lower length or raise model.positions"
            )
        if self.objective.name == "fine_tune" and self.model.source is None:
            raise ValueError("fine_tune goes on from a checkpoint: say model.from")
        if self.lora is not None and self.model.source is None:
            raise ValueError("lora adapts a checkpoint: say model.from, or leave lora out")
        return self

    def as_dict(self) -> dict[str, Any]:
        """Plain values, defaults included, under the file's names."""
        return self.model_dump(mode="json", by_alias=True)

    def deciding_fields(self) -> dict[str, Any]:
        """The fields that decide the weights.

        Where the rate falls late, a run may be made longer or shorter before it begins to.
        """
        left = {*_KEEPERS, *(("updates",) if self.optimizer.fall == "late" else ())}
        fields = {name: value for name, value in self.as_dict().items() if name not in left}
        for table, added in _ADDED_LATER.items():
            if fields[table] is None:
                continue
            known = type(getattr(self, table)).model_fields.items()
            defaults = {field.alias or name: field.default for name, field in known}
            fields[table] = {
                name: value
                for name, value in fields[table].items()
                if name not in added or value != defaults[name]
            }
        return fields

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides the weights."""
        return hashlib.sha256(
            json.dumps(self.deciding_fields(), sort_keys=True).encode()
        ).hexdigest()

    @property
    def name(self) -> str:
        """A name for its folder that cannot be another run's."""
        shape = self.model
        sized = shape.size or (f"{shape.layers}x{shape.width}" if shape.layers else "adapted")
        parts = "+".join(part["name"] for part in self.variant) or "vanilla"
        words = (self.objective.name, sized, parts, f"seed{self.seed}", self.digest[:8])
        return "-".join(words).replace("_", "-")


_TABLES: dict[str, type[Table]] = {
    "model": Shape,
    "objective": Objective,
    "optimizer": Optimizer,
    "lora": Lora,
    "checkpoints": Checkpoints,
    "log": Log,
}


def read(path: str | Path, settings: Sequence[str] = ()) -> Spec:
    """A SPEC.toml, with `name=value` settings over it: `optimizer.lr=1e-3`."""
    fields = read_toml(path)
    for setting in settings:
        _apply_setting(fields, setting)
    return from_dict(fields, where=Path(path).name)


def from_dict(fields: Mapping[str, Any], where: str = "the spec") -> Spec:
    """A spec from plain values, or a SpecError that says what would have worked."""
    return check_table(Spec, fields, where, _TABLES)


def _apply_setting(fields: dict[str, Any], setting: str) -> None:
    """Put one `a.b=value` into nested tables; the value is TOML, or else a word."""
    name, equals, word = setting.partition("=")
    *tables, last = name.split(".")
    if not equals or not all((*tables, last)) or len(tables) > 100:
        raise SpecError(f"--set {setting:.60} is not name=value: say --set optimizer.lr=1e-3")
    try:
        value = parse_toml(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        value = word
    except (ValueError, RecursionError) as error:
        raise SpecError(f"--set {setting:.60}: {error}; say --set optimizer.lr=1e-3") from None
    for table in tables:
        fields = fields.setdefault(table, {})
        if not isinstance(fields, dict):
            raise SpecError(f"--set {setting}: {table} is a value and holds no {last}")
    fields[last] = value
