"""A run as the page asks for it: a header, then packets by key, each made when it is asked for.

Keys are words such as `layer-5` or `row-3-0-mean`; docs/explorer-contract.md lists them. They are
the same for the server, the static folder and the exported page, which differ only in what is kept.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anchorwatch.errors import AnchorwatchError, SpecError, TraceError
from anchorwatch.explorer import header as heads
from anchorwatch.explorer.layers import Received, has_sink
from anchorwatch.explorer.mending import INSTEAD
from anchorwatch.explorer.opening import OpenedTrace
from anchorwatch.explorer.packets import bin_maxima, codes, linear_codes, pack
from anchorwatch.explorer.tables import MetricTable, head_measures
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.trace.atomic_io import UNREADABLE
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.trace import ABSENT, MISSING, Trace

MOST_COLUMNS = 1024
"""Columns of a tile: a longer canvas is binned, and the page says so."""
MOST_MAP = 1024
"""Rows and columns of an exact map, likewise."""
PART = 64
"""Positions of a part: what a click on a bin opens."""
KEY = re.compile(r"[a-z]{3,8}(-(\d{1,7}|mean)){0,4}")
"""What a key may look like at all."""

Replay = Callable[[int, int, int], np.ndarray]
"""The exact map of a (step, layer, head), measured now."""


class MissingError(AnchorwatchError, LookupError):
    """The run has no such packet; the message says how to get what it would hold."""


@dataclass(frozen=True)
class Options:
    """How runs are shown."""

    rule: Rule = field(default_factory=rulli)
    columns: int = MOST_COLUMNS
    tables: tuple[MetricTable, ...] = ()
    """Metrics by head, for whichever runs they are about."""


class Run:
    """One run, damaged or not: `header()` always answers, `packet(key)` where there is data."""

    def __init__(
        self,
        opened: OpenedTrace,
        options: Options | None = None,
        replay: Replay | None = None,
        *,
        no_replay: str = "",
    ) -> None:
        self.opened, self.options, self._replay = opened, options or Options(), replay
        self._no_replay = no_replay  # why the model at hand measures nothing of this run
        self._lock = threading.Lock()  # one reader at a time: a layer takes memory
        self._kept: dict[str, bytes] = {}
        self._received: Received | None = None
        self._flow = False
        self._picks: list[list[int]] = []
        self.problems: list[str] = []
        """What was found wrong since the trace was opened, a sentence each."""
        if opened.trace is not None:
            self._tabled = head_measures(self.options.tables, opened.trace)
            try:
                self._prepare(opened.trace)
            except (AnchorwatchError, *UNREADABLE) as error:
                self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Somebody sealed what is no run of ours: its name, and why."""
        why = self.opened.without_place(str(error))
        said = one_line(f"it is not as we write it: {why}")[:300]
        damage = (*self.opened.damage, *self.problems, said)
        self.opened = dataclasses.replace(self.opened, trace=None, damage=damage)

    def _prepare(self, trace: Trace) -> None:
        """Find out what there is; a field that is not as we write it is named and left out."""
        self.width = -(-trace.canvas.shape[1] // self.options.columns)
        self._fields, odd = heads.measures(trace)
        self.problems += odd
        tabled = [one.as_dict() for one in self._tabled]
        self.measures: list[dict[str, Any]] = [*self._fields, *tabled]
        self.layers = trace.manifest["model"]["layers"]
        for name, prepare in _PARTS.items():
            if name in trace:
                try:
                    prepare(self, trace)
                except (AnchorwatchError, *UNREADABLE) as error:
                    why = self.opened.without_place(str(error))
                    self.problems.append(one_line(f"{name} cannot be shown: {why}")[:300])
        if "canvas" in self.opened.lost and any("trace" in t.rows for t in self.options.tables):
            self.problems.append("tables name a run by its canvas: they cannot be shown")

    def _take_received(self, trace: Trace) -> None:
        self._received = Received(trace, self.options.rule)

    def _take_sink(self, trace: Trace) -> None:
        if not has_sink(trace):
            raise SpecError("it is not over steps, layers, heads and groups")

    def _take_flow(self, trace: Trace) -> None:
        flow, model = trace["region_flow"], trace.manifest["model"]
        count = len(trace.manifest["regions"])
        if flow.dims != ("step", "layer", "head", "query_region", "key_region"):
            raise SpecError("it is not over steps, layers, heads and regions")
        if flow.shape[1:] != (model["layers"], model["heads"], count, count):
            raise SpecError(f"it is of {flow.shape[1:]} layers, heads and regions, not of all")
        self._flow = True

    def _take_maps(self, trace: Trace) -> None:
        names = ("pick_step", "pick_layer", "pick_head")
        if trace["pattern"].dims != ("pick", "query", "key"):
            raise SpecError("it is not over picks, queries and keys")
        held = [trace[name] for name in names]
        if any(one.dims != ("pick",) or one.dtype.kind not in "iu" for one in held):
            raise SpecError(f"{', '.join(names)} do not say what it is of")
        self._picks = np.stack([one.values for one in held], axis=1).tolist()

    @property
    def trace(self) -> Trace:
        if self.opened.trace is None:
            raise MissingError(
                f"{self.opened.name} cannot be shown: {'; '.join(self.opened.damage)}"
            )
        return self.opened.trace

    def header(self) -> dict[str, Any]:
        """Everything but arrays, as JSON has it."""
        if self.opened.trace is not None:
            try:
                return self._told()
            except (AnchorwatchError, *UNREADABLE) as error:
                self.give_up(error)
        return heads.damaged_run_header(self.opened)

    def _told(self) -> dict[str, Any]:
        told = heads.header(self.opened, self.options.rule)
        told["damage"] += self.problems
        held = self._received
        return told | {
            "width": self.width,
            "bins": -(-told["positions"] // self.width),
            "groups": [] if held is None else list(held.groups),
            "group": 0 if held is None else held.first,
            "layers": list(range(self.layers)) if held is not None else [],
            "null_of": [] if held is None else held.null_of,
            "part": PART,
            "measures": self.measures,
            "flow": self._flow,
            "maps": self.maps(),
            "on_demand": {"heads": True, "rows": True, "maps": self._replay is not None},
            "left_out": self._left_out(),
        }

    def keys(self, layers: Sequence[int] | None = None) -> list[str]:
        """What a page that cannot ask again is given."""
        held = range(self.layers) if layers is None else layers
        found = ["frames"]
        if self._received is not None:
            first = self._received.first
            found += [f"null-{kind}-{first}" for kind in sorted(set(self._received.null_of))]
            found += [f"layer-{at}" for at in held]
        found += [f"measure-{at}" for at in range(len(self.measures))]
        found += ["flow"] if self._flow else []
        return found

    def maps(self) -> list[list[int]]:
        """[step, layer, head] of the exact maps the trace holds."""
        return [list(pick) for pick in self._picks]

    def packet(self, key: str) -> bytes:
        """The bytes of a key, or `MissingError`, which says why and what would give it."""
        if not KEY.fullmatch(key):
            raise MissingError("there is no such part of a run")
        kind, *words = key.split("-")
        made = _MAKERS.get((kind, len(words)))
        if made is None or ("mean" in words and kind not in ("tile", "row", "part")):
            raise MissingError("there is no such part of a run")
        if kind in ("frames", "row", "map"):  # small: none waits for a layer that is being made
            return self._made(made, key)
        with self._lock:
            if key in self._kept:
                return self._kept[key]
            packet = self._made(made, key)
            if kind not in ("tile", "part"):
                self._kept[key] = packet
            return packet

    def prepare(self, layer: int | None = None) -> None:
        """Make the layer that a page opens with: a reader whose browser starts need not wait."""
        if self._received is not None:
            with suppress(MissingError):  # who asks for it is told why
                first = self.layers // 2 if layer is None else layer  # as `middle` in the page
                self.packet(f"layer-{first}")

    def _made(self, made: Callable[..., bytes], key: str) -> bytes:
        kind, *words = key.split("-")
        try:
            return made(self, *[None if word == "mean" else int(word) for word in words])
        except MissingError:
            raise
        except (IndexError, SpecError) as error:
            raise MissingError(f"there is no {key} in this run") from error
        except (TraceError, *UNREADABLE) as error:
            said = self.opened.without_place(str(error))
            raise MissingError(one_line(f"{kind} cannot be read: {said}")[:400]) from error

    def frames(self) -> bytes:
        """The canvas history: indices into the header's tokens, roles, regions, commit times."""
        trace, ids = self.trace, [one["id"] for one in heads.tokens(self.trace)]
        at = np.searchsorted(ids, trace.canvas)
        held = {
            "canvas": np.where(trace.canvas == MISSING, -1, at).astype(np.int32),
            "role": trace.role.astype(np.uint8),
            "region": trace["region"].values.astype(np.int32),
            "committed_at": trace.committed_at.astype(np.int32),
            "logprob": trace.logprob.astype(np.float32),
            "keys": (trace.role[:-1] != ABSENT).sum(axis=1).astype(np.int32),
        }
        return pack(held)

    def null(self, kind: int, group: int) -> bytes:
        """[step, bin] what indifferent queries of a group give under one kind of visibility."""
        held = self._shares()
        _within(kind, max(held.null_of) + 1)
        _within(group, len(held.groups))
        coded, most = codes(bin_maxima(held.null(kind).shares[:, group], self.width))
        return pack({"codes": coded}, {"most": most})

    def layer(self, layer: int) -> bytes:
        return self._shares().layer(_within(layer, self.layers), self.width)

    def tile(self, layer: int, head: int | None, group: int) -> bytes:
        """One head, or the mean over heads, of one query group."""
        held = self._shares()
        _within(group, len(held.groups))
        return held.tile(_within(layer, self.layers), self._head(head), group, self.width)

    def part(self, layer: int, head: int | None, group: int, at: int) -> bytes:
        """[step, key] the `at`-th run of `PART` positions, without bins and exact."""
        held, positions = self._shares(), self.trace.canvas.shape[1]
        _within(group, len(held.groups))
        _within(at, -(-positions // PART))
        keys = slice(at * PART, min((at + 1) * PART, positions))
        return held.part(_within(layer, self.layers), self._head(head), group, keys)

    def row(self, step: int, layer: int, head: int | None) -> bytes:
        """[group, key] exact shares at a step, and what indifferent attention would give."""
        held = self._shares()
        _within(step, self.trace.num_steps)
        shares = held.row(step, _within(layer, self.layers), self._head(head))
        null = held.null_at(layer).shares[step].astype(np.float32)
        return pack({"shares": shares, "null": null})

    def measure(self, at: int) -> bytes:
        """[step, layer, head] exact numbers of a field, or of a table with what stands beside."""
        _within(at, len(self.measures))
        if at >= len(self._fields):
            return pack(self._tabled[at - len(self._fields)].arrays)
        return pack({"values": self._measured(at).astype(np.float32)})

    def flow(self) -> bytes:
        """[step, layer, query region, key region], mean over heads."""
        if not self._flow:
            raise MissingError("there is no flow between regions in this run")
        held = self.trace["region_flow"]
        count = (~np.isnan(held.values)).sum(axis=2)
        total = np.nansum(held.values, axis=2, dtype=np.float64)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        return pack({"flow": mean.astype(np.float32)})

    def map(self, step: int, layer: int, head: int) -> bytes:
        """[query, key] of one head, from the trace or by replay; binned above `MOST_MAP`."""
        _within(step, self.trace.num_steps)
        _within(layer, self.layers)
        self._head(head)
        if [step, layer, head] in (picks := self.maps()):
            values = self.trace["pattern"][picks.index([step, layer, head])].values
        elif self._replay is not None:
            values = self._replayed(step, layer, head)
        else:
            why = f"; {self._no_replay}" if self._no_replay else ""
            raise MissingError(how_to_map(step, layer, head) + why)
        width = -(-values.shape[-1] // MOST_MAP)
        small = bin_maxima(np.swapaxes(bin_maxima(values, width), -1, -2), width)
        return pack({"map": np.swapaxes(small, -1, -2).astype(np.float32)}, {"width": width})

    def _replayed(self, step: int, layer: int, head: int) -> np.ndarray:
        assert self._replay is not None
        try:
            return self._replay(step, layer, head)
        except AnchorwatchError as error:
            raise MissingError(f"the map cannot be measured: {error}") from error

    def small_packet(self, key: str) -> bytes:
        """As `packet`, measures in eight bits: for a page that is sent."""
        if not re.fullmatch(r"measure-\d{1,7}", key):
            return self.packet(key)
        with self._lock:
            return self._made(Run.small_measure, key)

    def small_measure(self, at: int) -> bytes:
        """As `measure`, in eight bits. Tables stay exact."""
        if at >= len(self._fields):
            return self.measure(at)
        coded, least, most = linear_codes(self._measured(at))
        return pack({"codes": coded}, {"least": least, "most": most})

    def _measured(self, at: int) -> np.ndarray:
        held = self.trace[self._fields[_within(at, len(self._fields))]["name"]]
        groups = held.dims[-1] == "group"
        at_last = self._received.first if groups and self._received is not None else 0
        return held.values if held.ndim == 3 else held[..., at_last].values

    def _shares(self) -> Received:
        if self._received is None:
            raise MissingError(
                "the run has no received attention: measure it afterwards with "
                "aw.replay(model, trace, probes=[aw.probes.received()])"
            )
        return self._received

    def _head(self, head: int | None) -> int | None:
        return None if head is None else _within(head, self.trace.manifest["model"]["heads"])

    def _left_out(self) -> list[str]:
        lost = self.opened.lost
        said = [f"{name} is damaged and {INSTEAD.get(name, 'not shown')}" for name in lost]
        if self.width > 1:
            said.append(
                f"the token axis is binned {self.width}:1, each cell being the greatest of "
                f"{self.width} neighbouring positions"
            )
        return [*said, self._no_replay] if self._no_replay else said


def how_to_map(step: int, layer: int, head: int) -> str:
    """What to type to get an exact map."""
    return (
        f"the map of step {step}, layer {layer}, head {head} is not in the trace: "
        "view it with --model, or measure it with aw.replay(model, trace, "
        f"[aw.probes.pattern(layers=[{layer}], heads=[{head}])], steps=[{step}])"
    )


def _within(index: int, count: int) -> int:
    if not 0 <= index < count:
        raise IndexError(index)
    return index


_MAKERS: dict[tuple[str, int], Callable[..., bytes]] = {
    ("frames", 0): Run.frames,
    ("null", 2): Run.null,
    ("layer", 1): Run.layer,
    ("tile", 3): Run.tile,
    ("part", 4): Run.part,
    ("row", 3): Run.row,
    ("measure", 1): Run.measure,
    ("flow", 0): Run.flow,
    ("map", 3): Run.map,
}

_PARTS: dict[str, Callable[[Run, Trace], None]] = {
    "received": Run._take_received,
    "sink_received": Run._take_sink,
    "region_flow": Run._take_flow,
    "pattern": Run._take_maps,
}
"""What takes a field before it is shown, each by itself: one that is wrong takes no other away."""
