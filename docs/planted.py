"""Runs the claims of the three papers on networks wired by hand, whose verdicts are known.

    python docs/planted.py            # runs everything, writes docs/planted.json and the table
    python docs/planted.py sinks/H3   # some claims only, prints what they say

For every claim there is a network (or a pair) that has the property and one that has not.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from anchorwatch.models import wired
from anchorwatch.studies.budget import BUDGETS, Budget
from anchorwatch.studies.claim import Criterion
from anchorwatch.studies.estimate import ITEM, PROMPT, Estimate
from anchorwatch.studies.evidence import Answers
from anchorwatch.studies.papers import claims
from anchorwatch.studies.protocols import Protocol
from anchorwatch.studies.run_study import study
from anchorwatch.studies.verdict import ALPHA, JudgedClaim

FOLDER = Path(__file__).parent
BUDGET = Budget(
    "planted",
    prompts=5,
    length=8,
    steps=8,
    items=30,
    rows=5,
    answer=8,
    text_length=16,
    text_block=8,
)
SUPPORTED, REFUTED = "supported", "refuted"
LEAST_POWER = 0.8
BEGIN, END = "<!-- made by docs/planted.py -->", "<!-- end -->"


@dataclass(frozen=True)
class Subject:
    """The models of a study, without `wired/`."""

    mdm: str = ""
    arm: str = ""
    sink: str = ""

    @property
    def models(self) -> dict[str, str]:
        given = {"model": self.mdm, "against": self.arm, "sink": self.sink}
        return {
            role: name if "/" in name else f"wired/{name}" for role, name in given.items() if name
        }

    def __str__(self) -> str:
        return " beside ".join(name for name in (self.mdm, self.sink, self.arm) if name)


def pair(mdm: str, arm: str = "arm-first-sink") -> Subject:
    return Subject(mdm, arm)


def single(mdm: str) -> Subject:
    return Subject(mdm)


UNTRAINED = Subject("tiny/llada", "tiny/arm")
"""Random weights: no claim about trained models may be supported."""
PLANTED: dict[str, tuple[Subject, Subject]] = {
    # claim: (has the property, has it not)
    "sinks/H1": (single("static-sink"), single("even")),
    "sinks/H2": (single("static-sink"), single("many-sinks")),
    "sinks/H3": (pair("first-mask-sink"), pair("static-sink", "arm-mixed-sinks")),
    "sinks/H4": (single("last-line-sink"), single("first-mask-sink")),
    "sinks/H5": (single("last-line-sink"), single("flickering-sink")),
    "sinks/H6": (single("first-mask-sink"), single("last-mask-sink")),
    "sinks/H7": (single("last-mask-sink"), single("dream-first-mask-sink")),
    "sinks/H8": (single("mmada-static-sink"), single("mmada-first-mask-sink")),
    "sinks/H9": (single("fewer-deep-sinks"), single("more-deep-sinks")),
    "sinks/H10": (single("line-and-mask-sinks"), single("static-sink")),
    "sinks/H11": (single("many-sinks"), single("first-places")),
    "sinks/H12": (single("split-sink"), single("mixed-sinks")),
    "sinks/H14": (single("needed-sink"), single("static-sink")),
    "sinks/H15": (single("needed-sink"), single("needed-moving-sink")),
    "sinks/H18": (single("drained-sink"), single("last-text-sink")),
    "sinks/H19": (single("deep-angle"), single("deep-norm")),
    "sinks/H20": (single("massive-sink"), single("massive-elsewhere")),
    "sinks/H21": (single("static-sink"), single("other-sinks-in-each-layer")),
    "sinks/H23": (single("static-sink"), single("weak-sinks")),
    "sinks/H25": (single("spare-sink"), single("static-sink")),
    "sinks/H26": (pair("first-mask-sink"), pair("mixed-sinks", "arm-mixed-sinks")),
    "sinks/H30": (single("mmada-self-attention"), single("mmada-last-line-sink")),
    "sinks/H31": (
        pair("first-mask-sink", "arm-needed-sink"),
        pair("needed-sink", "arm-needed-sink"),
    ),
    "sinks/H32": (single("dream-early-drift"), single("dream-late-drift")),
    "sinks/H33": (single("dream-first-places"), single("dream-many-sinks")),
    "sinks/H34": (single("mmada-even"), single("mmada-static-sink")),
    "sinks/H13": (
        pair("retrieval", "arm-needed-sink-retrieval"),
        pair("needed-sink-retrieval", "arm-needed-sink-retrieval"),
    ),
    "sinks/H27": (single("retrieval"), single("needed-sink-retrieval")),
    "sinks/H28": (single("retrieval"), single("needed-sink-retrieval")),
    "sinks/H29": (
        pair("retrieval", "arm-needed-sink-retrieval"),
        pair("retrieval", "arm-retrieval"),
    ),
    "floating/H1": (pair("first-mask-sink"), pair("first-mask-sink", "arm-alternating-sinks")),
    "floating/H2": (pair("first-mask-sink"), pair("static-sink", "arm-alternating-sinks")),
    "floating/H3": (single("first-mask-sink"), single("last-mask-sink")),
    "floating/H4": (single("last-text-sink"), single("first-mask-sink")),
    "floating/H5": (single("many-sinks"), single("first-places")),
    "floating/H6": (single("floating"), single("floating-reversed")),
    "floating/H7": (pair("first-mask-sink"), pair("first-mask-sink", "arm-alternating-sinks")),
    "floating/H8": (single("floating"), single("deep-static-sink")),
    "floating/H9": (single("floating"), single("floating-reversed")),
    "floating/H11": (single("deep-angle"), single("deep-norm")),
    "floating/H12": (single("deep-angle"), single("deep-norm")),
    "floating/H16": (single("floating"), single("floating-reversed")),
    "floating/H17": (single("deep-needed-sink"), single("deep-static-sink")),
    "floating/H21": (
        pair("retrieval", "arm-soft-retrieval"),
        pair("soft-retrieval", "arm-softer-retrieval"),
    ),
    "floating/H23": (
        pair("soft-retrieval", "arm-softer-retrieval"),
        pair("softer-retrieval", "arm-softer-retrieval"),
    ),
    "floating/H27": (single("split-sink"), single("static-sink")),
    "floating/H28": (
        pair("soft-retrieval", "arm-softer-retrieval"),
        pair("softer-retrieval", "arm-soft-retrieval"),
    ),
    "floating/H29": (
        pair("deep-alternating-sinks"),
        pair("deep-static-sink", "arm-alternating-sinks"),
    ),
    "sink_token/H1": (single("drained-sink"), single("last-text-sink")),
    "sink_token/H2": (pair("first-mask-sink"), pair("mixed-sinks")),
    "sink_token/H18": (Subject(sink="needed-sink-token"), Subject(sink="sink-token")),
}


_WORLD = "asks questions of the made-up world, which no wired network can answer"
_IDENTITY = "holds of every network by construction, so that none can lack it"
NOT_PLANTED: dict[str, str] = {
    "sinks/H16": "wired networks write from one end, so that no position can be delayed",
    "sinks/H17": "wired networks answer in one step as in many",
    "sinks/H22": _WORLD,
    "floating/H10": "layers of wired networks without heads have no weights to correlate",
    "floating/H13": _WORLD,
    "floating/H14": _WORLD,
    "floating/H15": _WORLD,
    "floating/H18": _WORLD,
    "floating/H19": "takes 24 layers; the rollout of even attention is tested in closed form",
    "floating/H20": "no wired network is lost in the middle",
    "floating/H22": "asks questions of two hops, which no wired network can answer",
    "floating/H24": "asks with prompts that wired networks cannot read",
    "floating/H25": _WORLD,
    "floating/H26": "wired anchors are kinds of tokens that both tasks have",
    "sink_token/H11": _IDENTITY,
    "sink_token/H12": "wired states do not mix: heads read tokens, not what other heads brought",
    "sink_token/H13": "wired networks answer in one step as in many",
    "sink_token/H14": _IDENTITY,
    "sink_token/H19": "there is no wired network with gates",
    "sink_token/H20": _WORLD,
    "sink_token/H23": "reads a table of training runs that a study cannot be given",
}
"""Claims without a wired network, and why; planted evidence tests them (tests/studies)."""


CONSTANT = {
    "floating/H8": "with one anchor in every head the statistic is exactly 0 for every prompt, and "
    "a statistic without bounds that never varies has no interval",
}
"""Claims whose absence cannot be shown by any number of prompts, and why."""


UNCONFIRMED = {
    "sinks/H3": "of the network without the property, both models' sinks stay: exactly 0 is not "
    "told from the margin of .05 by 48 prompts",
    "sinks/H5": "16 positions are too few to see the sink of a line vanish",
    "sinks/H6": "the network that moves to the left is of Dream's family, and the claim of LLaDA's",
    "sinks/H26": "the network without the property has sinks at the last word in one head of four",
    "sink_token/H2": "the network without the property has moving sinks in one head of four",
}
"""Claims whose planted networks do not yet show what they were meant to, and why."""


def run_subject(subject: Subject, names: Sequence[str], out: Path) -> dict[str, JudgedClaim]:
    """Claims on the models of a subject, through the whole pipeline."""
    out.mkdir(parents=True, exist_ok=True)
    protocol = None
    if any(isinstance(spec, Answers) for claim in claims(names) for spec in claim.needs):
        protocol = Protocol(task=str(write_questions(out / "questions.jsonl")))
    record = study(list(names), **subject.models, budget=BUDGET, protocol=protocol, out=out)
    return {judged.claim.id: judged for judged in record.findings}


def write_questions(path: Path) -> Path:
    """Questions that the retrieval networks can read: a name, and passages of 2 to 50 words with
    that name and its value somewhere among them."""
    chance = np.random.default_rng(0)
    lines = []
    for index, (name, value) in enumerate(zip(wired.KEYS, wired.VALUES, strict=True)):
        words = chance.permutation(wired.OTHERS)[: 2 + index * 48 // len(wired.KEYS)].tolist()
        place = int(chance.integers(len(words) + 1))
        text = " ".join([*words[:place], name, value, *words[place:]]) + "."
        lines.append(json.dumps({"question": name, "answers": [value], "passages": [text]}))
    order = chance.permutation(len(lines))
    path.write_text("".join(f"{lines[index]}\n" for index in order))
    return path


def power(estimate: Estimate, criterion: Criterion, *, supports: bool, judged: int) -> float:
    """Chance that the standard budget decides a criterion, from the spread of these units.

    At the first step of the correction for `judged` claims, the strictest.
    """
    units = {PROMPT: BUDGETS["standard"].prompts, ITEM: BUDGETS["standard"].items}
    count = units.get(estimate.unit, estimate.n)
    tail = ALPHA / judged / 2
    low, high = criterion.region
    value = estimate.value
    # 1. The ends of the region, and how far the value is from the nearest.
    ends = [end for end in (low, high) if math.isfinite(end)]
    inside = low < value < high
    if inside != supports or estimate.why:
        return 0.0
    room = min(abs(value - end) for end in ends)
    # 2. All units alike: Estimate's own bound on how many others there may be.
    if estimate.alike:
        nearest = min(ends, key=lambda end: abs(value - end))
        assert estimate.bounds is not None
        far = estimate.bounds[0] if value > nearest else estimate.bounds[1]
        p = (abs(nearest - far) / abs(value - far)) ** count
        return float(p < tail)
    # 3. Student's t.
    spread = estimate.error * math.sqrt(estimate.n)
    if not spread:
        return 1.0
    shift = room / (spread / math.sqrt(count))
    return float(scipy.stats.nct.sf(scipy.stats.t.isf(tail, count - 1), count - 1, shift))


def power_of(judged: JudgedClaim, *, supports: bool) -> float:
    """Of a claim: all deciding criteria inside, or the likeliest one outside."""
    if judged.finding is None:
        return 0.0
    claim = judged.claim
    together = sum(1 for other in claims([claim.study]) if other.is_testable)
    each = [
        power(
            judged.finding.measured[criterion.name].estimate,
            criterion,
            supports=supports,
            judged=together if supports else together * len(claim.deciding),
        )
        for criterion in claim.deciding
    ]
    return min(each) if supports else max(each)


def describe(
    claim_id: str, subject: Subject, judged: JudgedClaim, *, supports: bool
) -> dict[str, Any]:
    """A row of the table."""
    values = {}
    if judged.finding is not None:
        values = {
            criterion.name: judged.finding.measured[criterion.name].estimate.value
            for criterion in judged.claim.deciding
        }
    chance = power_of(judged, supports=supports)
    return {
        "claim": claim_id,
        "networks": str(subject),
        "has": supports,
        "verdict": judged.says,
        "power": round(chance, 3),
        "values": {name: round(float(value), 4) for name, value in values.items()},
        "lacking": judged.lacking,
    }


def run_all(names: Sequence[str], out: Path) -> list[dict[str, Any]]:
    """Rows of all claims in `names`, every subject's evidence shared between its claims."""
    wanted: dict[Subject, list[tuple[str, bool]]] = {}
    for name in names:
        for subject, has in zip(PLANTED[name], (True, False), strict=True):
            wanted.setdefault(subject, []).append((name, has))
    rows = []
    for subject, asked in wanted.items():
        judged = run_subject(subject, [name for name, _ in asked], out)
        rows += [describe(name, subject, judged[name], supports=has) for name, has in asked]
    order = list(PLANTED)
    return sorted(rows, key=lambda row: (order.index(row["claim"]), not row["has"]))


def write_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table of the page: a line for each claim."""
    lines = [
        "| claim | has it | verdict | power | has it not | verdict | power |",
        "|---|---|---|---|---|---|---|",
    ]
    known = {(row["claim"], row["has"]): row for row in rows}
    for name, subjects in PLANTED.items():
        cells = [name]
        for subject, has in zip(subjects, (True, False), strict=True):
            row = known.get((name, has))
            cells += [str(subject), "not recorded" if row is None else row["verdict"]]
            cells.append(f"{row['power']:.2f}" if row and row["power"] is not None else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_page(rows: Sequence[Mapping[str, Any]]) -> None:
    """docs/planted.json, and the table of docs/planted.md between its marks."""
    (FOLDER / "planted.json").write_text(json.dumps(rows, indent=1) + "\n")
    page = FOLDER / "planted.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{write_table(rows)}\n\n{END}{after}")


def main() -> None:
    """Some claims are printed; all are written to the page, too."""
    names = sys.argv[1:]
    rows = run_all(names or list(PLANTED), Path("runs/planted"))
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")
    if not names:
        write_page(rows)


if __name__ == "__main__":
    main()
