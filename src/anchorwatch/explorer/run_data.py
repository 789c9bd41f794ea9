"""A run as the page asks for it: a header, then packets by key, each made when it is asked for.

The header is everything but arrays: names, sizes, tokens, and what is left out. Every text in it is
foreign: controls and other invisible characters are marks here already, and what is long is
clipped, so that the page has nothing to decide. Keys are words such as `layer-5` or `row-3-0-mean`;
docs/explorer-contract.md lists them. They are the same for the server, the static folder and the
exported page, which differ only in what is kept.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, ParamSpec

import numpy as np

from anchorwatch import __version__
from anchorwatch.edits.spec import from_dict
from anchorwatch.errors import AnchorwatchError, SpecError, TraceError
from anchorwatch.explorer.contract import Findings
from anchorwatch.explorer.encode import bin_maxima, codes, linear_codes, pack
from anchorwatch.explorer.findings import find_all
from anchorwatch.explorer.head_tables import MetricTable, head_measures
from anchorwatch.explorer.live import Live
from anchorwatch.explorer.measures import HeadMeasure, list_measures
from anchorwatch.explorer.open import INSTEAD, OpenedTrace
from anchorwatch.explorer.received import Received, class_names, has_sink, regions_of
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.table import describe_decoding
from anchorwatch.trace.atomic_io import UNREADABLE
from anchorwatch.trace.escape import one_line, visible
from anchorwatch.trace.trace import ABSENT, MISSING, ROLES, Trace

P = ParamSpec("P")
VERSION = 1
LONGEST_TOKEN = 160
LONGEST_TEXT = 2000
MOST_COLUMNS = 1024
"""Columns of a tile: a longer canvas is binned, and the page says so."""
MOST_MAP = 1024
"""Rows and columns of an exact map, likewise."""
PART = 64
"""Positions of a part: what a click on a bin opens."""
KEY = re.compile(r"[a-z]{3,10}(-(\d{1,7}|mean)){0,4}")
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


@dataclass(frozen=True)
class PacketKind:
    """One kind of packet that a page can ask for."""

    make: Callable[..., bytes]
    small: bool
    """Made at once, beside whatever else is being made."""
    keep: bool
    """Kept after it was made; there are too many of others."""
    takes_mean: bool
    """Whether `mean` may stand for a head."""


PACKETS: dict[tuple[str, int], PacketKind] = {}
"""By the word a key begins with, and how many numbers follow it."""


def packet_kind(
    *, small: bool = False, keep: bool = True, takes_mean: bool = False
) -> Callable[[Callable[P, bytes]], Callable[P, bytes]]:
    """Register a method of `Run` as the packets whose keys begin with its name."""

    def register(make: Callable[P, bytes]) -> Callable[P, bytes]:
        count = len(inspect.signature(make).parameters) - 1  # without the run itself
        PACKETS[make.__name__, count] = PacketKind(make, small, keep, takes_mean)
        return make

    return register


class Run:
    """One run, damaged or not: `header()` always answers, `packet(key)` where there is data."""

    def __init__(
        self,
        opened: OpenedTrace,
        options: Options | None = None,
        replay: Replay | None = None,
        *,
        no_replay: str = "",
        live: Live | None = None,
    ) -> None:
        self.opened, self.options, self._replay = opened, options or Options(), replay
        self.live = live
        self._no_replay = no_replay  # why the model at hand measures nothing of this run
        self._lock = threading.Lock()  # one reader at a time: a layer takes memory
        self._finding = threading.Lock()
        self._found: Findings | None = None
        self._kept: dict[str, bytes] = {}
        self._received: Received | None = None
        self._flow = False
        self._picks: list[list[int]] = []
        self.problems: list[str] = []
        """What was found wrong since the trace was opened, a sentence each."""
        self._measures: list[HeadMeasure] = []
        if opened.trace is not None:
            tabled = head_measures(self.options.tables, opened.trace)
            try:
                self._prepare(opened.trace, tabled)
            except (AnchorwatchError, *UNREADABLE) as error:
                self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Somebody sealed what is no run of ours: its name, and why."""
        why = self.opened.without_folders(str(error))
        sentence = one_line(f"it is not as we write it: {why}")[:300]
        damage = (*self.opened.damage, *self.problems, sentence)
        self.opened = dataclasses.replace(self.opened, trace=None, damage=damage)

    def _prepare(self, trace: Trace, tabled: list[HeadMeasure]) -> None:
        """Find out what there is; a field that is not as we write it is named and left out."""
        # 1. Sizes.
        self.width = -(-trace.canvas.shape[1] // self.options.columns)
        self.layers = trace.manifest["model"]["layers"]
        # 2. Fields that are shown as more than a number for each head, each by itself.
        problems: list[str] = []
        for name, prepare in _FIELDS.items():
            if name in trace:
                try:
                    prepare(self, trace)
                except (AnchorwatchError, *UNREADABLE) as error:
                    why = self.opened.without_folders(str(error))
                    problems.append(one_line(f"{name} cannot be shown: {why}")[:300])
        # 3. Measures of heads: fields and registered ones, then tables.
        group = 0 if self._received is None else self._received.first
        measures, odd = list_measures(trace, group)
        self._measures = [*measures, *tabled]
        self.problems += [*odd, *problems]
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
        picks = [trace[name] for name in names]
        if any(pick.dims != ("pick",) or pick.dtype.kind not in "iu" for pick in picks):
            raise SpecError(f"{', '.join(names)} do not say what it is of")
        self._picks = np.stack([pick.values for pick in picks], axis=1).tolist()

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
                return self._build_header()
            except (AnchorwatchError, *UNREADABLE) as error:
                self.give_up(error)
        return describe_damaged_run(self.opened)

    def _build_header(self) -> dict[str, Any]:
        fields = describe_run(self.opened, self.options.rule)
        fields["damage"] += self.problems
        received = self._received
        return fields | {
            "width": self.width,
            "bins": -(-fields["positions"] // self.width),
            "groups": [] if received is None else list(received.groups),
            "group": 0 if received is None else received.first,
            "layers": list(range(self.layers)) if received is not None else [],
            "null_of": [] if received is None else received.null_of,
            "part": PART,
            "measures": [measure.as_dict() for measure in self._measures],
            "flow": self._flow,
            "maps": self.maps(),
            "on_demand": {
                "heads": True,
                "rows": True,
                "maps": self._replay is not None,
                "live": self.live is not None,
            },
            "left_out": self._left_out(),
        }

    def keys(self, layers: Sequence[int] | None = None) -> list[str]:
        """What a page that cannot ask again is given."""
        keys = ["frames"]
        if self._received is not None:
            first = self._received.first
            keys.append("findings")
            keys += [f"null-{kind}-{first}" for kind in sorted(set(self._received.null_of))]
            keys += [
                f"layer-{layer}" for layer in (range(self.layers) if layers is None else layers)
            ]
        keys += [f"measure-{index}" for index in range(len(self._measures))]
        keys += ["flow"] if self._flow else []
        return keys

    def maps(self) -> list[list[int]]:
        """[step, layer, head] of the exact maps the trace holds."""
        return [list(pick) for pick in self._picks]

    def packet(self, key: str) -> bytes:
        """The bytes of a key, or `MissingError`, which says why and what would give it."""
        if not KEY.fullmatch(key):
            raise MissingError("there is no such part of a run")
        name, *words = key.split("-")
        kind = PACKETS.get((name, len(words)))
        if kind is None or ("mean" in words and not kind.takes_mean):
            raise MissingError("there is no such part of a run")
        if kind.small:  # does not wait for a layer that is being made
            return self._make(kind.make, key)
        with self._lock:
            if key in self._kept:
                return self._kept[key]
            packet = self._make(kind.make, key)
            if kind.keep:
                self._kept[key] = packet
            return packet

    def prepare(self, layer: int | None = None) -> None:
        """Make the layer that a page opens with: a reader whose browser starts need not wait."""
        if self._received is not None:
            with suppress(MissingError):  # who asks for it is told why
                first = self.layers // 2 if layer is None else layer  # as `middle` in the page
                self.packet(f"layer-{first}")
                self.packet("findings")

    def _make(self, make: Callable[..., bytes], key: str) -> bytes:
        kind, *words = key.split("-")
        try:
            return make(self, *[None if word == "mean" else int(word) for word in words])
        except MissingError:
            raise
        except (IndexError, SpecError) as error:
            raise MissingError(f"there is no {key} in this run") from error
        except (TraceError, *UNREADABLE) as error:
            why = self.opened.without_folders(str(error))
            raise MissingError(one_line(f"{kind} cannot be read: {why}")[:400]) from error

    @packet_kind(small=True)
    def frames(self) -> bytes:
        """The canvas history: indices into the header's tokens, roles, regions, commit times."""
        trace, ids = self.trace, [token["id"] for token in list_tokens(self.trace)]
        index = np.searchsorted(ids, trace.canvas)
        arrays = {
            "canvas": np.where(trace.canvas == MISSING, -1, index).astype(np.int32),
            "role": trace.role.astype(np.uint8),
            "region": trace["region"].values.astype(np.int32),
            "committed_at": trace.committed_at.astype(np.int32),
            "logprob": trace.logprob.astype(np.float32),
            "margin": _margins(trace),
            "keys": (trace.role[:-1] != ABSENT).sum(axis=1).astype(np.int32),
        }
        return pack(arrays)

    @packet_kind(small=True)
    def findings(self) -> bytes:
        """What stands out, in words and numbers; made once, beside whatever else is being made."""
        received = self._shares()
        with self._finding:
            if self._found is None:
                group = received.groups[received.first]
                self._found = find_all(self.trace, self.options.rule, group)
        return pack({}, self._found)

    def sent_findings(self) -> bytes:
        """As `findings`, without what single heads do: a page that is sent shows means alone."""
        received = self._shares()
        group = received.groups[received.first]
        return pack({}, find_all(self.trace, self.options.rule, group, heads=False))

    @packet_kind()
    def null(self, kind: int, group: int) -> bytes:
        """[step, bin] what uniform attention of a group gives under one kind of visibility."""
        received = self._shares()
        _within(kind, max(received.null_of) + 1)
        _within(group, len(received.groups))
        coded, most = codes(bin_maxima(received.null(kind).shares[:, group], self.width))
        return pack({"codes": coded}, {"most": most})

    @packet_kind()
    def layer(self, layer: int) -> bytes:
        return self._shares().layer(_within(layer, self.layers), self.width)

    @packet_kind(keep=False, takes_mean=True)
    def tile(self, layer: int, head: int | None, group: int) -> bytes:
        """One head, or the mean over heads, of one query group."""
        received = self._shares()
        _within(group, len(received.groups))
        return received.tile(_within(layer, self.layers), self._head(head), group, self.width)

    @packet_kind(keep=False, takes_mean=True)
    def part(self, layer: int, head: int | None, group: int, index: int) -> bytes:
        """[step, key] the `index`-th run of `PART` positions, without bins and exact."""
        received, positions = self._shares(), self.trace.canvas.shape[1]
        _within(group, len(received.groups))
        _within(index, -(-positions // PART))
        keys = slice(index * PART, min((index + 1) * PART, positions))
        return received.part(_within(layer, self.layers), self._head(head), group, keys)

    @packet_kind(small=True, takes_mean=True)
    def row(self, step: int, layer: int, head: int | None) -> bytes:
        """[group, key] exact shares at a step, and what uniform attention would give."""
        received = self._shares()
        _within(step, self.trace.num_steps)
        shares = received.row(step, _within(layer, self.layers), self._head(head))
        null = received.null_at(layer).shares[step].astype(np.float32)
        return pack({"shares": shares, "null": null})

    @packet_kind()
    def measure(self, index: int) -> bytes:
        """[step, layer, head] exact numbers of a field, or of a table with what stands beside."""
        arrays = self._measures[_within(index, len(self._measures))].read()
        return pack({name: array.astype(np.float32) for name, array in arrays.items()})

    @packet_kind()
    def flow(self) -> bytes:
        """[step, layer, query region, key region], mean over heads."""
        if not self._flow:
            raise MissingError("there is no flow between regions in this run")
        values = self.trace["region_flow"].values
        count = (~np.isnan(values)).sum(axis=2)
        total = np.nansum(values, axis=2, dtype=np.float64)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        return pack({"flow": mean.astype(np.float32)})

    @packet_kind(small=True)
    def map(self, step: int, layer: int, head: int) -> bytes:
        """[query, key] of one head, from the trace or by replay; binned above `MOST_MAP`."""
        _within(step, self.trace.num_steps)
        _within(layer, self.layers)
        self._head(head)
        if [step, layer, head] in (picks := self.maps()):
            values = self.trace["pattern"][picks.index([step, layer, head])].values
        elif self._replay is not None:
            values = self._measure_map(step, layer, head)
        else:
            why = f"; {self._no_replay}" if self._no_replay else ""
            raise MissingError(how_to_map(step, layer, head) + why)
        width = -(-values.shape[-1] // MOST_MAP)
        small = bin_maxima(np.swapaxes(bin_maxima(values, width), -1, -2), width)
        return pack({"map": np.swapaxes(small, -1, -2).astype(np.float32)}, {"width": width})

    @packet_kind(small=True)
    def candidates(self, step: int) -> bytes:
        """[position, rank] what the model would write at each masked position before a step."""
        _within(step, self.trace.num_steps)
        if self.live is None:
            raise MissingError("candidates take the model: view the run with --model NAME")
        try:
            likely = self.live.candidates(step)
        except AnchorwatchError as error:
            raise MissingError(f"there are no candidates: {error}") from error
        arrays = {
            "position": likely.positions,
            "token": likely.tokens,
            "probability": likely.probabilities,
        }
        texts = {str(token): visible(text[:LONGEST_TOKEN]) for token, text in likely.texts.items()}
        return pack(arrays, {"texts": texts})

    def _measure_map(self, step: int, layer: int, head: int) -> np.ndarray:
        assert self._replay is not None
        try:
            return self._replay(step, layer, head)
        except AnchorwatchError as error:
            raise MissingError(f"the map cannot be measured: {error}") from error

    def sent_packet(self, key: str) -> bytes:
        """As `packet`, with nothing that a page which cannot ask again cannot show."""
        if key != "findings":
            return self.packet(key)
        return self._make(Run.sent_findings, key)

    def small_packet(self, key: str) -> bytes:
        """As `packet`, measures in eight bits: for a page that is sent."""
        if not re.fullmatch(r"measure-\d{1,7}", key):
            return self.sent_packet(key)
        with self._lock:
            return self._make(Run.small_measure, key)

    def small_measure(self, index: int) -> bytes:
        """As `measure`, in eight bits. Tables stay exact."""
        measure = self._measures[_within(index, len(self._measures))]
        if measure.table:
            return pack(measure.read())
        coded, least, most = linear_codes(measure.read()["values"])
        return pack({"codes": coded}, {"least": least, "most": most})

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
        sentences = [f"{name} is damaged and {INSTEAD.get(name, 'not shown')}" for name in lost]
        if self.width > 1:
            sentences.append(
                f"the token axis is binned {self.width}:1, each cell being the greatest of "
                f"{self.width} neighbouring positions"
            )
        return [*sentences, self._no_replay] if self._no_replay else sentences


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


_FIELDS: dict[str, Callable[[Run, Trace], None]] = {
    "received": Run._take_received,
    "sink_received": Run._take_sink,
    "region_flow": Run._take_flow,
    "pattern": Run._take_maps,
}
"""What takes a field before it is shown, each by itself: one that is wrong takes no other away."""


def describe_run(opened: OpenedTrace, rule: Rule) -> dict[str, Any]:
    """Of a run that can be shown: everything but arrays."""
    trace = opened.trace
    assert trace is not None
    manifest = trace.manifest
    frames, positions = trace.canvas.shape
    return {
        "version": VERSION,
        "anchorwatch": __version__,
        "name": opened.name,
        "digest": "" if "canvas" in opened.lost else trace.digest()[:12],
        "model": _model(manifest["model"]),
        "decoding": _clip(one_line(describe_decoding(manifest["decoding"])), 200),
        "edits": [_clip(shorten_numbers(one_line(repr(edit))), 120) for edit in trace.edits],
        "fork": manifest["fork"]["step"] if "fork" in manifest else None,
        "seed": trace.seed,
        "prompt": _clip(visible(trace.prompt), LONGEST_TEXT),
        "answer": _clip(visible(trace.text), LONGEST_TEXT),
        "frames": frames,
        "steps": frames - 1,
        "positions": positions,
        "answer_positions": trace.answer.tolist(),
        "progress": trace.progress.tolist(),
        "roles": list(ROLES),
        "regions": [_clip(one_line(name), 40) for name in manifest["regions"]],
        "classes": [_clip(one_line(name), 40) for name in class_names(trace)],
        "class_kind": "region" if regions_of(trace) else "role",
        "added": has_sink(trace),
        "tokens": list_tokens(trace),
        "rule": str(rule),
        "rule_words": rule.in_words(),
        "left_masked": trace.num_left_masked,
        "damage": list(opened.damage),
        "lost": list(opened.lost),
    }


def list_tokens(trace: Trace) -> list[dict[str, Any]]:
    """Every token of the canvas history, in the order of ids; `frames` counts in this list.

    Two tokens are the same if they have the same digest, or none and the same text.
    """
    ids = np.unique(trace.canvas[trace.canvas != MISSING]).tolist()
    split = trace.manifest.get("token_bytes", {})
    tokens = []
    for token_id in ids:
        text = trace.token(token_id)
        shown = visible(text[:LONGEST_TOKEN])
        token: dict[str, Any] = {"id": token_id, "text": shown}
        if len(text) > LONGEST_TOKEN:
            token["length"] = len(text)
        if shown.replace("⏎\n", "\n") != text[:LONGEST_TOKEN]:
            token["escaped"] = _clip(ascii(text[:LONGEST_TOKEN])[1:-1], LONGEST_TOKEN)
        if str(token_id) in split:
            token["bytes"] = str(split[str(token_id)])[:LONGEST_TOKEN]
        if token.keys() & {"length", "escaped", "bytes"}:  # else what is shown is the whole of it
            whole = f"{text}\0{split.get(str(token_id), '')}".encode("utf-8", "surrogatepass")
            token["digest"] = sha256(whole).hexdigest()[:16]
        tokens.append(token)
    return tokens


def describe_damaged_run(opened: OpenedTrace) -> dict[str, Any]:
    """Of a run that cannot be shown: its name, and why."""
    return {"version": VERSION, "name": opened.name, "damage": list(opened.damage)}


def _margins(trace: Trace) -> np.ndarray:
    """[position] float32; NaN in traces that were written before margins were kept."""
    if "margin" not in trace:
        return np.full(len(trace.logprob), np.nan, np.float32)
    return trace["margin"].values.astype(np.float32)


def _model(model: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {
        name: _clip(one_line(str(model.get(name, ""))), 120)
        for name in ("source", "family", "kind", "visibility")
    }
    kept |= {name: model[name] for name in ("layers", "heads")}
    parts = [from_dict(fields) for fields in model.get("parts", ())]
    return kept | {"parts": [_clip(one_line(repr(part)), 120) for part in parts]}


def _clip(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def shorten_numbers(text: str) -> str:
    """Four neighbouring numbers or more in brackets by the first and the last.

    >>> shorten_numbers("sink_token(steps=(6, 7, 8, 9))"), shorten_numbers("(1, 2, 4, 5)")
    ('sink_token(steps=(6, ..., 9))', '(1, 2, 4, 5)')
    """

    def shorten(match: re.Match[str]) -> str:
        numbers = [int(number) for number in match[1].split(", ")]
        close = numbers == list(range(numbers[0], numbers[-1] + 1))
        return f"({numbers[0]}, ..., {numbers[-1]})" if close else match[0]

    return re.sub(r"\((\d{1,7}(?:, \d{1,7}){3,})\)", shorten, text)


def list_numbers(numbers: Sequence[int], most: int = 16) -> str:
    """Numbers in words: `0, 2, 4 and 13 more`."""
    listed = ", ".join(map(str, numbers[:most]))
    return listed if len(numbers) <= most else f"{listed} and {len(numbers) - most} more"
