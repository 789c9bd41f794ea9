"""Runs the claims of the three papers on networks wired by hand, whose verdicts are known.

    python docs/planted.py            # runs what is not on record, writes the record and the table
    python docs/planted.py sinks/H3   # some claims only, and whether or not they are on record
    python docs/planted.py --page     # runs nothing, writes the table of what is on record

For every claim there is a network (or a pair) that has the property and one that has not. Rows are
kept after each subject, so that the script may be stopped at any time. A row carries the digest of
what decided it (measure and margins, wiring, prompts, budget): where that has changed it counts as
not recorded.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from anchorwatch.models import wired
from anchorwatch.studies.budget import BUDGETS, Budget
from anchorwatch.studies.claim import GREATER, Criterion
from anchorwatch.studies.estimate import ITEM, PROMPT, Correlation, Estimate, Greatest, Least
from anchorwatch.studies.evidence import Answers, Effect, Experiment
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.sinks.measures import UNTRAINED as UNTRAINED_TWIN
from anchorwatch.studies.prompts import QUESTION_SETS, TEXT
from anchorwatch.studies.protocols import Protocol
from anchorwatch.studies.run_study import sets_read, study
from anchorwatch.studies.verdict import ALPHA, JudgedClaim

FOLDER = Path(__file__).parent
BUDGET = Budget(
    "planted",
    prompts=8,
    length=8,
    steps=8,
    items=30,
    rows=8,
    answer=8,
    text_length=16,
    text_block=8,
)
FEW, MANY = 5, 18
"""Units of an experiment that only a precondition reads; prompts that a share of exactly 1 takes to
be told from margins of three quarters and four fifths: .8^18 = .018, below half of 5 %."""
WIDE = {"floating/H17", "sink_token/H12", "sink_token/H20"}
"""Claims whose units differ so much that eight are too few."""
EXACT = {"floating/H1", "floating/H2", "sinks/H1", "sinks/H23", "sinks/H32"}
"""Claims with such a margin, whose share is exactly 0 or 1 in planted networks, or whose prompts
differ."""
MORE_PROMPTS = {"sinks/H15": 24, "sinks/H25": 24}
"""Where keys are hidden, and six prompts are too few: half of the steps exactly has to be told from
a quarter, or a line break is in some prompts only."""
MANY_ITEMS = {"sinks/H27": 800}
"""Questions that a share of exactly 0 takes to be told from a margin of one point. The standard
budget has 480, of which 0 leave 1.5 points: the power of these claims is that of the full one."""
MORE_ITEMS = {"floating/H20": 80, "sinks/H36": 200}
"""Questions that a share of exactly 0 takes to be told from a margin of five points."""
ONE_NAME = {"floating/H20"}
"""Claims asked among ten passages, of which only one may have the name that is asked for: of two
with other values a wired network brings both, and which one it writes is chance."""
SUPPORTED, REFUTED, BELOW_MARGIN = "supported", "refuted", "below the margin"
ONE_SIDED: dict[str, str] = {
    "floating/H8": "what several keys take is never less than what the greatest of them does",
    "sink_token/H2": "no sink is at its commonest place more than always",
}
"""Claims whose statistic cannot lie on the other side of its null, and why: a network that lacks
the property is below the margin."""
LEAST_POWER = 0.8
CERTAIN = 30.0
"""Standard errors between a value and its margin from which nothing is left to chance."""
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
    "sinks/H3": (pair("first-mask-sink"), pair("static-sink", "arm-line-sinks")),
    "sinks/H4": (single("eighth-sinks"), single("first-mask-sink")),
    "sinks/H5": (single("last-fourth-sink"), single("flickering-sink")),
    "sinks/H6": (single("first-mask-sink"), single("llada-last-mask-sink")),
    "sinks/H7": (single("last-mask-sink"), single("dream-first-mask-sink")),
    "sinks/H8": (single("mmada-static-sink"), single("mmada-first-mask-sink")),
    "sinks/H9": (single("fewer-deep-sinks"), single("more-deep-sinks")),
    "sinks/H10": (single("line-and-mask-sinks"), single("static-sink")),
    "sinks/H11": (single("many-sinks"), single("first-places")),
    "sinks/H12": (single("split-sink"), single("own-words")),
    "sinks/H14": (single("needed-sink"), single("static-sink")),
    "sinks/H15": (single("needed-sink"), single("needed-moving-sink")),
    "sinks/H18": (single("drained-sink"), single("last-text-sink")),
    "sinks/H19": (single("deep-angle"), single("deep-norm")),
    "sinks/H20": (single("massive-sink"), single("massive-elsewhere")),
    "sinks/H21": (single("static-sink"), single("other-sinks-in-each-layer")),
    "sinks/H23": (single("dream-static-sink"), single("many-and-weak-sinks")),
    "sinks/H25": (single("spare-sink"), single("no-spare-sink")),
    "sinks/H26": (pair("first-mask-sink"), pair("static-sink", "arm-line-sinks")),
    "sinks/H30": (single("mmada-start-and-first-mask"), single("mmada-self-and-sink")),
    "sinks/H31": (
        pair("first-mask-sink", "arm-needed-sink"),
        pair("needed-sink", "arm-needed-sink"),
    ),
    "sinks/H32": (single("dream-early-drift"), single("dream-late-drift")),
    "sinks/H33": (single("dream-first-places"), single("dream-many-sinks")),
    "sinks/H34": (single("mmada-even"), single("mmada-static-sink")),
    "sinks/H13": (
        pair("retrieval", "arm-needed-sink-retrieval"),
        pair("needed-sink-retrieval", "arm-partly-needed-sink-retrieval"),
    ),
    "sinks/H27": (single("retrieval"), single("needed-sink-retrieval")),
    "sinks/H28": (single("retrieval"), single("needed-sink-retrieval")),
    "sinks/H36": (single("many-sinks-retrieval"), single("retrieval")),
    "sinks/H29": (
        pair("retrieval", "arm-needed-sink-retrieval"),
        pair("retrieval", "arm-retrieval"),
    ),
    "floating/H1": (pair("first-mask-sink"), pair("static-sink")),
    "floating/H2": (pair("first-mask-sink"), pair("static-sink", "arm-alternating-sinks")),
    "floating/H3": (single("first-mask-sink"), single("last-mask-sink")),
    "floating/H4": (single("last-text-sink"), single("first-mask-sink")),
    "floating/H5": (single("many-sinks"), single("first-places")),
    "floating/H6": (single("fewer-deep-anchors"), single("more-deep-anchors")),
    "floating/H7": (pair("first-mask-sink"), pair("first-mask-sink", "arm-alternating-sinks")),
    "floating/H8": (single("floating"), single("some-words-beside-a-sink")),
    "floating/H9": (single("floating"), single("floating-reversed")),
    "floating/H11": (single("deep-angle"), single("deep-norm")),
    "floating/H12": (single("deep-angle"), single("deep-norm")),
    "floating/H16": (single("floating"), single("floating-reversed")),
    "floating/H17": (single("deep-needed-sink"), single("deep-unread-sink")),
    "floating/H13": (
        pair("deep-retrieval", "arm-retrieval"),
        pair("shallow-retrieval", "arm-retrieval"),
    ),
    "floating/H14": (
        pair("near-and-far-heads", "arm-four-of-many-heads"),
        pair("four-of-many-heads", "arm-near-and-far-heads"),
    ),
    "floating/H15": (
        pair("four-of-many-heads", "arm-four-of-many-heads"),
        pair("twelve-of-many-heads", "arm-twelve-of-many-heads"),
    ),
    "floating/H18": (single("retrieval"), single("nearby-reading")),
    "floating/H20": (
        pair("most-names", "arm-nearby-retrieval"),
        pair("nearby-retrieval", "arm-nearby-retrieval"),
    ),
    "floating/H21": (
        pair("most-names", "arm-narrow-reading"),
        pair("narrow-reading", "arm-wide-reading"),
    ),
    "floating/H23": (pair("most-names", "arm-few-names"), pair("few-names", "arm-half-of-names")),
    "floating/H27": (single("start-or-colon"), single("same-token-sinks")),
    "floating/H28": (
        pair("most-names", "arm-half-of-names"),
        pair("half-of-names", "arm-most-names"),
    ),
    "floating/H29": (
        pair("deep-alternating-sinks"),
        pair("deep-static-sink", "arm-alternating-sinks"),
    ),
    "sink_token/H1": (single("drained-sink"), single("last-text-sink")),
    "sink_token/H2": (pair("first-mask-sink"), pair("nearly-static-sink")),
    "sink_token/H12": (single("static-sink"), single("self-behind-sink")),
    "sink_token/H18": (
        Subject(sink="needed-sink-token-beside-a-sink"),
        Subject(sink="sink-token-beside-a-needed-sink"),
    ),
    "sink_token/H20": (
        Subject(sink="needed-sink-token-retrieval"),
        Subject(sink="spare-sink-token-retrieval"),
    ),
}


_IDENTITY = "holds of every network by construction, so that none can lack it"
NOT_PLANTED: dict[str, str] = {
    "sinks/H16": "wired networks write from one end, so that no position can be delayed",
    "sinks/H17": "wired networks answer in one step as in many",
    "sinks/H22": "a network without it loses no question, and 48 questions of which none is lost "
    "do not tell a cost from five points",
    "sinks/H35": "keys of wired networks depend on their own token alone, so that none drifts",
    "floating/H10": "layers of wired networks without heads have no weights to correlate",
    "floating/H19": "takes 24 layers; the rollout of even attention is tested in closed form",
    "floating/H22": "asks questions of two hops, which no wired network can answer",
    "floating/H24": "asks with prompts that wired networks cannot read",
    "floating/H25": "48 prompts do not tell a correlation of 0 from one of .1",
    "floating/H26": "wired anchors are kinds of tokens that both tasks have",
    "sink_token/H11": _IDENTITY,
    "sink_token/H13": "wired networks answer in one step as in many",
    "sink_token/H14": _IDENTITY,
    "sink_token/H19": "there is no wired network with gates",
    "sink_token/H23": "reads a table of training runs that a study cannot be given",
}
"""Claims without a wired network, and why; planted evidence tests them (tests/studies)."""


def run_subject(subject: Subject, names: Sequence[str], out: Path) -> dict[str, JudgedClaim]:
    """Claims on the models of a subject, through the whole pipeline."""
    out.mkdir(parents=True, exist_ok=True)
    chosen = claims(names)
    asks = any(isinstance(spec, Answers) for claim in chosen for spec in claim.needs)
    sets = sets_read(chosen)
    questions = None
    if asks or sets & set(QUESTION_SETS):
        questions = write_questions(out / "questions.jsonl", 8 * budget_for(names).items)
        if set(names) & ONE_NAME:
            add_distractors(questions)
    protocol = Protocol(
        prompts=write_openings() if TEXT in sets else (),
        task=None if questions is None else str(questions),
    )
    how: dict[str, Any] = {"budget": budget_for(names), "protocol": protocol}
    record = study(list(names), **subject.models, **how, out=out, report=False)
    return {judged.claim.id: judged for judged in record.findings}


def budget_for(names: Sequence[str]) -> Budget:
    """Fewer prompts for effects, which are dear and vary; fewer units where a precondition alone
    reads a table."""
    needs = [spec for claim in claims(names) for spec in claim.needs]
    tables = {spec for spec in needs if isinstance(spec, Experiment)}
    prompts = FEW + 1 if any(isinstance(spec, Effect) for spec in needs) else BUDGET.prompts
    rows = FEW if tables <= {UNTRAINED_TWIN} else BUDGET.rows
    if set(names) & WIDE:
        rows = MANY
    if set(names) & EXACT:
        prompts, rows = MANY, MANY if "sinks/H1" in names else rows
    prompts = max([prompts, *(MORE_PROMPTS.get(name, 0) for name in names)])
    needed = MANY_ITEMS | MORE_ITEMS
    items = max([BUDGET.items, *(needed.get(name, 0) for name in names)])
    return replace(BUDGET, prompts=prompts, rows=rows, items=items)


def write_openings(count: int = 48) -> tuple[str, ...]:
    """How texts begin that the walk goes on with: a few words and marks that a wired network knows,
    and a line break in some."""
    chance = np.random.default_rng(1)
    texts = []
    for _ in range(count):
        words = chance.permutation([*wired.KEYS, *wired.OTHERS])[: chance.integers(9, 18)].tolist()
        middle = int(chance.integers(2, len(words) - 1))
        mark = chance.choice([",", ".", ".\n"])
        first, second = " ".join(words[:middle]), " ".join(words[middle:])
        gap = "" if mark.endswith("\n") else " "
        texts.append(f"The {first}{mark}{gap}{second}. She saw the")
    return tuple(texts)


def write_questions(path: Path, count: int) -> Path:
    """Questions that the retrieval networks can read: a name, and a passage of 4 to 40 words with
    that name and its value somewhere among them."""
    chance = np.random.default_rng(0)
    others = [word for word in wired.OTHERS if word not in wired.KEYS]
    lines = []
    for index in range(count):
        name = wired.KEYS[index % len(wired.KEYS)]
        value = str(chance.choice(wired.VALUES))
        words = chance.permutation(others)[: chance.integers(2, 39)].tolist()
        place = int(chance.integers(len(words) + 1))
        text = " ".join([*words[:place], name, value, *words[place:]]) + "."
        lines.append(json.dumps({"question": name, "answers": [value], "passages": [text]}))
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def add_distractors(path: Path, count: int = 9) -> None:
    """To every question so many passages of other questions, without its name and its answer."""
    chance = np.random.default_rng(2)
    items = [json.loads(line) for line in path.read_text().splitlines()]
    lines = []
    for item in items:
        (gold,) = item["passages"]
        lacking = [
            other["passages"][0]
            for other in items
            if not {item["question"], *item["answers"]} & set(other["passages"][0][:-1].split())
        ]
        chosen = chance.permutation(len(lacking))[:count]
        others = [{"text": lacking[place], "gold": False, "kind": "random"} for place in chosen]
        passages = [{"text": gold, "gold": True}, *others]
        lines.append(json.dumps(item | {"passages": passages}))
    path.write_text("".join(f"{line}\n" for line in lines))


def power(
    estimate: Estimate,
    criterion: Criterion,
    *,
    supports: bool,
    judged: int,
    budget: str = "standard",
) -> float:
    """Chance that a budget decides a criterion, from the spread of these units.

    At the first step of the correction for `judged` claims, the strictest.
    """
    if isinstance(estimate, Least | Greatest):
        each = [
            power(other, criterion, supports=supports, judged=judged, budget=budget)
            for other in estimate.others
        ]
        # All of several must be told from the margin, or one of them: which one is not known
        # before, so that the level is shared by all. The latter is left to the clearest.
        all_of = isinstance(estimate, Least) == (criterion.direction == GREATER)
        return min(each) if all_of == supports else max(each)
    units = {PROMPT: BUDGETS[budget].prompts, ITEM: BUDGETS[budget].items}
    count = units.get(estimate.unit, estimate.n)
    tail = ALPHA / judged / 2
    low, high = criterion.region
    value = estimate.value
    if isinstance(estimate, Correlation):
        low, high, value = (math.atanh(max(-1.0, min(1.0, end))) for end in (low, high, value))
        estimate = estimate.on_scale
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
    # 3. Student's t; so far off that its distribution cannot be computed it is certain.
    spread = estimate.error * math.sqrt(estimate.n)
    if spread * CERTAIN <= room * math.sqrt(count):
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
            budget="full" if claim.id in MANY_ITEMS else "standard",
        )
        for criterion in claim.deciding
    ]
    return min(each) if supports else max(each)


def read_code(function: Callable[..., Any]) -> str:
    """What a function does, as it is written: without decorators and docstring."""
    source = textwrap.dedent(inspect.getsource(function))
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    first = node.body[1 if ast.get_docstring(node) is not None else 0]
    return "\n".join(source.splitlines()[first.lineno - 1 :])


def spell_plan(name: str) -> dict[str, str]:
    """What a wired network is made of, without what is left as it is; nothing of others."""
    plan = wired.WIRINGS.get(name)
    if plan is None:
        return {}
    return {
        item.name: repr(getattr(plan, item.name))
        for item in fields(plan)
        if getattr(plan, item.name) != item.default
    }


def digest_of(claim_id: str, subject: Subject) -> str:
    """Of what decides a row: how the claim is tested, the wiring, prompts, questions, amounts.

    The words in which a claim is stated decide nothing and are left out.
    """
    (claim,) = claims([claim_id])
    assert claim.measure is not None
    decides = {
        "criteria": [
            (criterion.name, criterion.direction, criterion.margin, criterion.about)
            for criterion in claim.deciding
        ],
        "measure": read_code(claim.measure),
        "needs": [spec.as_dict() for spec in claim.needs],
        "preconditions": [
            (getattr(item.measure, "func", item.measure).__qualname__, item.minimum)
            for item in claim.preconditions
        ],
        "scope": claim.scope,
        "networks": {name: spell_plan(name) for name in sorted(subject.models.values())},
        "material": [
            *(read_code(write) for write in (write_openings, write_questions)),
            *([read_code(add_distractors)] if claim_id in ONE_NAME else []),
        ],
        "budget": budget_for([claim_id]).as_dict(),
    }
    spelled = json.dumps(decides, sort_keys=True, default=str)
    return hashlib.sha256(spelled.encode()).hexdigest()[:16]


def expect_verdict(claim_id: str, *, supports: bool) -> str:
    """The verdict on a network that has the property, or has it not."""
    if supports:
        return SUPPORTED
    return BELOW_MARGIN if claim_id in ONE_SIDED else REFUTED


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
        "lacking": judged.lacking or judged.not_about,
        "digest": digest_of(claim_id, subject),
    }


def is_current(row: Mapping[str, Any]) -> bool:
    """Whether a row is of the claim and the networks as they are now."""
    if row["claim"] not in PLANTED:
        return False
    subject = PLANTED[row["claim"]][0 if row["has"] else 1]
    return bool(row.get("digest") == digest_of(row["claim"], subject))


def run_all(
    names: Sequence[str], out: Path, known: Sequence[Mapping[str, Any]] = ()
) -> Iterator[list[dict[str, Any]]]:
    """Rows of the claims in `names` but those of `known`, subject by subject: its claims share
    evidence."""
    have = {(row["claim"], row["has"]) for row in known}
    wanted: dict[tuple[Budget, Subject], list[tuple[str, bool]]] = {}
    for name in names:
        for subject, has in zip(PLANTED[name], (True, False), strict=True):
            if (name, has) not in have:
                wanted.setdefault((budget_for([name]), subject), []).append((name, has))
    for (_, subject), asked in wanted.items():
        judged = run_subject(subject, [name for name, _ in asked], out)
        yield [describe(name, subject, judged[name], supports=has) for name, has in asked]


def write_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table of the page: a line for each claim."""
    lines = [
        "| claim | has it | verdict | power | has it not | verdict | power |",
        "|---|---|---|---|---|---|---|",
    ]
    known = {(row["claim"], row["has"]): row for row in rows if is_current(row)}
    for name, subjects in PLANTED.items():
        cells = [name]
        for subject, has in zip(subjects, (True, False), strict=True):
            row = known.get((name, has))
            cells += [str(subject), "not recorded" if row is None else row["verdict"]]
            cells.append(f"{row['power']:.2f}" if row and row["power"] is not None else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def read_record() -> list[dict[str, Any]]:
    """The rows on record."""
    rows: list[dict[str, Any]] = json.loads((FOLDER / "planted.json").read_text())
    return rows


def write_page(rows: Sequence[Mapping[str, Any]]) -> None:
    """docs/planted.json with the rows that are current, and the table of docs/planted.md."""
    order = list(PLANTED)
    kept = sorted(
        filter(is_current, rows), key=lambda row: (order.index(row["claim"]), not row["has"])
    )
    (FOLDER / "planted.json").write_text(json.dumps(kept, indent=1) + "\n")
    page = FOLDER / "planted.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{write_table(kept)}\n\n{END}{after}")


def main() -> None:
    """Claims that are named are run again; without names all that are not on record."""
    names = [name for name in sys.argv[1:] if not name.startswith("-")]
    record = [row for row in read_record() if is_current(row)]
    known = [row for row in record if row["claim"] not in names]
    if "--page" not in sys.argv:
        for rows in run_all(names or list(PLANTED), Path("runs/planted"), known):
            for row in rows:
                sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
            fresh = {(row["claim"], row["has"]) for row in rows}
            record = [row for row in record if (row["claim"], row["has"]) not in fresh] + rows
            write_page(record)
    write_page(record)


if __name__ == "__main__":
    main()
