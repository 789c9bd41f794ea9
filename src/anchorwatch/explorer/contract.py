"""What the explorer's page is given: the fields of the header, and the arrays of each packet.

The types of the page, `web/src/lib/schema.ts`, are written from here and from `trace/schema.py` by
`python web/make_schema.py`; docs/explorer-contract.md says what the numbers mean.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from anchorwatch.trace.schema import RUN_FIELDS


class Token(TypedDict):
    """A token of the canvas history; `canvas` counts in the header's list of them."""

    id: int
    text: str
    length: NotRequired[int]
    escaped: NotRequired[str]
    bytes: NotRequired[str]
    digest: NotRequired[Annotated[str, "Of one that is not shown whole."]]


class Measure(TypedDict):
    """A quantity with a number for each step, layer and head."""

    name: str
    unit: str
    says: str
    table: NotRequired[
        Annotated[bool, "It comes from a table of a metric, and has a null and an interval."]
    ]
    words: NotRequired[Annotated[list[str], "Of a verdict, what each number stands for."]]


class HeaderModel(TypedDict):
    """The model of a run."""

    source: str
    family: str
    kind: str
    visibility: str
    layers: int
    heads: int
    parts: Annotated[list[str], "What was trained with the network: sink tokens, gates."]


class FindingPlace(TypedDict):
    """Where a finding can be seen; what is absent stays as it is."""

    step: NotRequired[int]
    layer: NotRequired[int]
    head: NotRequired[Annotated[int | None, "null is the mean over heads."]]
    token: NotRequired[int]
    query: NotRequired[int]
    group: NotRequired[str]
    scale: NotRequired[Literal["share", "lift"]]
    view: Literal["map", "layers", "text", "heads", "flow", "exact"]


class SentencePart(TypedDict):
    """A piece of a sentence; with a place, a link to where it can be seen."""

    text: str
    place: NotRequired[FindingPlace]


class Finding(TypedDict):
    """Something that stands out in a run, in words and in numbers."""

    kind: Literal["sink", "move", "split", "retrieval"]
    words: list[SentencePart]
    place: FindingPlace
    value: float
    null: Annotated[float, "What even attention gives."]
    lift: Annotated[float | None, "Value over null; null where that is 0."]


class FindingList(TypedDict):
    """The strongest findings of one kind."""

    kind: Literal["sink", "move", "split", "retrieval"]
    findings: list[Finding]
    more: Annotated[int, "How many weaker ones there are."]
    none: Annotated[str, "Why there is none; empty where there is one."]


class Findings(TypedDict):
    """What stands out in a run, and where a page opens."""

    words: list[SentencePart]
    place: FindingPlace | None
    lists: list[FindingList]


class OnDemand(TypedDict):
    """What a page may ask for later."""

    heads: bool
    rows: bool
    maps: bool
    live: Annotated[bool, "A model is at hand: candidates, and forks of the run."]


class ForkProgress(TypedDict):
    """How far the fork is that the page asked for."""

    state: Literal["idle", "running", "done", "failed"]
    done: int
    steps: int
    run: Annotated[int | None, "The number of the new run, where it is done."]
    name: str
    error: str


class Header(TypedDict):
    """Everything a page is told of a run but arrays."""

    version: int
    anchorwatch: str
    name: str
    digest: str
    model: HeaderModel
    decoding: str
    edits: list[str]
    fork: int | None
    seed: int
    prompt: str
    answer: str
    frames: int
    steps: int
    positions: int
    answer_positions: list[int]
    progress: list[float]
    roles: list[str]
    regions: list[str]
    classes: list[str]
    class_kind: Literal["region", "role"]
    added: Annotated[
        bool, "The last class is keys that additions put there, such as a sink token: no positions."
    ]
    tokens: list[Token]
    rule: str
    rule_words: Annotated[str, "What a sink is: a key that ..."]
    left_masked: int
    damage: list[str]
    lost: list[str]
    width: Annotated[int, "Positions in a bin."]
    bins: int
    part: Annotated[int, "Positions of a part that is had without bins."]
    groups: list[str]
    group: int
    layers: list[int]
    null_of: list[int]
    measures: list[Measure]
    flow: bool
    maps: list[list[int]]
    on_demand: OnDemand
    left_out: list[str]


class DamagedHeader(TypedDict):
    """Of a run that cannot be shown there is only a name and why."""

    version: int
    name: str
    damage: list[str]


HEADER_TYPES = (
    *(Token, Measure, HeaderModel, OnDemand, Header, DamagedHeader),
    ForkProgress,
    *(FindingPlace, SentencePart, Finding, FindingList, Findings),
)

_PACKET_DTYPES = {"int8": "u1", "int16": "i4", "int32": "i4", "float32": "f4"}
_FRAMES = {
    name: _PACKET_DTYPES[field.dtype]
    for name, field in RUN_FIELDS.items()
    if set(field.dims) <= {"frame", "position"}
}
_TILE = {"codes": "u1", "sink_step": "i4", "sink_key": "i4", "sink_share": "f4"}

PACKETS: dict[str, dict[str, str]] = {
    "frames": _FRAMES | {"keys": "i4"},
    "layer": _TILE
    | {"top_key": "i4", "top_share": "f4", "head_top_key": "i4", "head_top_share": "f4"}
    | {"head_sink_share": "f4", "head_sinks": "i4", "flow": "f4"},
    "tile": _TILE,
    "part": {"shares": "f4", "null": "f4"},
    "row": {"shares": "f4", "null": "f4"},
    "null": {"codes": "u1"},
    "measure": {"values": "f4"},
    "flow": {"flow": "f4"},
    "map": {"map": "f4"},
    "findings": {},
    "candidates": {"position": "i4", "token": "i4", "probability": "f4"},
}
"""By the first word of a packet's key: its arrays and their dtypes.

A measure of an exported page has `codes` instead of `values`; one of a table has more beside. The
meta of `findings` is `Findings`, that of `candidates` has the `texts` of tokens by id."""
