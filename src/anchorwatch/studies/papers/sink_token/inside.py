"""Claims of 2601.19657 about one model: norms and movement of sinks, what a sink token is and does.

What is said here is of the models that were run, not of training with a sink token.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.errors import EvidenceError
from anchorwatch.metrics.sink_rules import topk
from anchorwatch.probes.spec import norms, received
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import ITEM, PROMPT, Estimate
from anchorwatch.studies.evidence import by_prompt, mean_of
from anchorwatch.studies.needs import Rows, Runs

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2601.19657"
_SHARE, _GAP = (0.0, 1.0), (-1.0, 1.0)
NORMS = Runs("mdm", probes=(received(), norms(keys=True, contribution=True)))
MDM, ARM = Runs("mdm"), Runs("arm")
CONSTANTS = Rows("sink", "constants", passes=3)
OPERATIONS = Rows("sink", "operations", passes=3)
KNOCK_OUTS = Rows("sink", "knock_outs", passes=32, options=(("length", 8), ("steps", 4)))
OPEN = {role: Rows(role, "openness", passes=1) for role in ("sink", "gate")}
IN_CONTEXT = Rows("sink", "in_context", passes=4)
LEAST_GAIN = 0.5
"""Nats per token of an answer that a passage must bring for there to be something to lose."""
LEAST_LOSS = 0.1
"""Nats per token that count as harm."""
LEAST_COST = 0.01
"""Of the operations of a pass."""


def _low_norms(evidence: Evidence) -> Finding:
    """The median over layers for each prompt: one layer with large vectors does not decide."""
    ratio = by_prompt(evidence, NORMS, "value_norms", "ratio", over="layer")
    middle = _medians(ratio.value)
    auroc = by_prompt(evidence, NORMS, "value_norms", "auroc", over="layer")
    greatest = by_prompt(
        evidence, NORMS, "value_norms", "ratio", over="layer", options={"rule": topk(1)}
    )
    also = {
        "AUROC of the smaller norm": mean_of(_medians(auroc.value)),
        "ratio of the greatest key, sink or not": mean_of(_medians(greatest.value)),
    }
    return Finding({"ratio": Measured(Estimate.mean(middle, PROMPT), 1.0)}, also)


def _medians(rows: np.ndarray) -> np.ndarray:
    """[prompt] over the layers that have a value; NaN where none has."""
    found = np.full(len(rows), np.nan)
    there = ~np.isnan(rows).all(axis=1)
    found[there] = np.nanmedian(rows[there], axis=1)
    return found


def _norm_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.geometry import value_norm_scatter

    held = evidence[NORMS].traces
    make = partial(metrics.value_norm_points, list(held), count=2000)
    return value_norm_scatter(evidence.once(("value norm points", NORMS), make))


def _moves(evidence: Evidence) -> Finding:
    rates = [by_prompt(evidence, need, "jumps", "jump_rate") for need in (MDM, ARM)]
    stays = [by_prompt(evidence, need, "spread", "modal_share") for need in (MDM, ARM)]
    found = {
        name: Measured(Estimate.mean(mdm.value, PROMPT, _SHARE), stays_put, mean_of(arm.value))
        for name, (mdm, arm), stays_put in (("switch", rates, 0.0), ("places", stays, 1.0))
    }
    also = {
        "switch, steps shuffled": mean_of(rates[0].null),
        "commonest place, drawn evenly": mean_of(stays[0].null),
    }
    return Finding(found, also)


def _path_figure(evidence: Evidence) -> Figure | None:
    """One prompt of each model: where the greatest sink of every head is."""
    from anchorwatch.figures.movement import sink_positions

    first = [evidence[need].traces[0] for need in (MDM, ARM) if evidence[need].traces]
    table = evidence.once(("first paths", MDM, ARM), partial(metrics.sink_positions, first))
    return sink_positions(table)


def _constant(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[CONSTANTS]
    parts = ("key", "value", "logits")
    whole = table[list(parts)].sum(axis=1).to_numpy(dtype=float)
    seeing = float(table["value_if_it_sees_all"].mean())
    found = Measured(Estimate.mean(whole, PROMPT), 0.0, seeing)
    return Finding({"apart": found}, {f"greatest of {n}": float(table[n].max()) for n in parts})


def _cheap(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[OPERATIONS]
    more, published = (
        (table[name] / table["without"] - 1).to_numpy(dtype=float) for name in ("with", "published")
    )
    theirs = float(published.mean())
    lies = "within" if theirs < LEAST_COST else "beyond"
    also: dict[str, float | str] = {"positions": float(table["positions"].mean())}
    also["the published form is"] = f"{lies} the margin"
    return Finding({"operations": Measured(Estimate.mean(more, PROMPT), 0.0, theirs)}, also)


def _causal(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[KNOCK_OUTS]
    kl = {name: table[name].to_numpy(dtype=float) for name in ("sink", "greatest", "random")}
    found = {
        name: Measured(Estimate.mean(kl[one] - kl[other], PROMPT), 0.0, mean_of(kl[other]))
        for name, one, other in (
            ("token over key", "sink", "greatest"),
            ("key over chance", "greatest", "random"),
        )
    }
    return Finding(found, {"KL without the sink token": mean_of(kl["sink"])} | _looks(evidence))


def _same(evidence: Evidence) -> Finding:
    """Pearson's over (layer, head, position), and the part of it that heads alone have."""
    sides = {role: _by_unit(evidence[need]) for role, need in OPEN.items()}
    both = sorted(set(sides["sink"]) & set(sides["gate"]))
    found = np.array([_correlations(sides["sink"][u], sides["gate"][u]) for u in both])
    one = Measured(Estimate.mean(found[:, 0], PROMPT, _GAP), 0.0, mean_of(found[:, 1]))
    return Finding({"correlation": one}, {"within heads": mean_of(found[:, 2])} | _looks(evidence))


def _looks(evidence: Evidence) -> dict[str, float]:
    """How far the sink token is looked at, over what one key would get of even attention."""
    each = _by_unit(evidence[OPEN["sink"]]).values()
    over = [(1 - one.mean()) * (one.shape[1] + 1) for one in each]
    return {"attention on the sink token over an even share": mean_of(over)}


def _by_unit(table: pd.DataFrame) -> dict[int, np.ndarray]:
    """[head of a layer, position] for each prompt."""
    ordered = table.sort_values(["unit", "layer", "head"])
    return {int(unit): np.array(list(rows["open"])) for unit, rows in ordered.groupby("unit")}


def _correlations(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Of all cells; what is left of it when positions are shuffled in each head; within heads."""
    a, b = one - one.mean(), other - other.mean()
    heads = [held.mean(axis=1, keepdims=True) for held in (a, b)]
    shared = float((heads[0] * heads[1]).mean())
    inside = a - heads[0], b - heads[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.sqrt((a * a).mean() * (b * b).mean())
        within = np.sqrt((inside[0] ** 2).mean() * (inside[1] ** 2).mean())
        return (
            float((a * b).mean() / size),
            float(shared / size),
            float((inside[0] * inside[1]).mean() / within),
        )


def _in_context(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[IN_CONTEXT]
    wide = table.pivot(index="unit", columns="context", values=["worn", "hidden"]).sort_index()
    brings = float((wide["worn"]["gold"] - wide["worn"]["closed"]).mean())
    if not brings >= LEAST_GAIN:
        raise EvidenceError(
            f"a masked diffusion model with a sink token to which a passage brings {LEAST_GAIN} "
            f"nats per token of the answer: to this one it brings {brings:.2f}"
        )
    lost = {
        name: (wide["worn"][name] - wide["hidden"][name]).to_numpy(dtype=float)
        for name in ("gold", "closed")
    }
    found = {
        "told": Measured(Estimate.mean(lost["gold"], ITEM), 0.0, mean_of(lost["closed"])),
        "more than untold": Measured(Estimate.mean(lost["gold"] - lost["closed"], ITEM), 0.0),
    }
    sure = mean_of(wide["worn"]["gold"])
    also: dict[str, float | str] = {"what a passage brings": brings}
    also |= {"log-probability with its passage": sure, **_looks(evidence)}
    if sure > -LEAST_LOSS:
        also["at its ceiling"] = "the answer is all but certain with its passage"
    return Finding(found, also)


CLAIMS = (
    Claim(
        "sink_token/H1",
        "Sinks of an ordinary masked diffusion model have values of small norm.",
        f"{_PAPER}, Fig. 1",
        "norm ratio .31 (LLaDA), .40 (Dream); AUC 1.000",
        PROMPT,
        needs=(NORMS,),
        criteria=(
            Criterion(
                "ratio",
                "norm of the values of sinks over those of the other keys of their head and step, "
                "median over layers",
                LESS,
                0.8,
                "a fifth smaller; the paper's are smaller by 60 to 69 %",
                null="as large as the others'",
            ),
        ),
        judge=_low_norms,
        draw=_norm_figure,
        defect="the caption says 10K tokens of each kind, the figure has 3,840; one unnamed layer",
        caveat="sinks are chosen by attention, and training may drain what is looked at: that they "
        "go together does not say which makes which",
    ),
    Claim(
        "sink_token/H2",
        "Those sinks move over denoising.",
        f"{_PAPER}, Fig. 1",
        "shown for steps 0 and 64 only",
        PROMPT,
        needs=(MDM, ARM),
        criteria=(
            Criterion(
                "switch",
                "share of neighbouring steps, both with a sink, at which a head's greatest sink is "
                "another",
                GREATER,
                0.05,
                "one step in twenty: a sink that moves less is there for nearly the whole run",
                null="a sink that stays",
                control="an ARM, whose rows are what they are once they are written",
            ),
            Criterion(
                "places",
                "share of the steps that a head's greatest sink spends at its commonest place",
                LESS,
                0.95,
                "one step in twenty is spent elsewhere",
                null="a sink that stays",
                control="an ARM",
            ),
        ),
        judge=_moves,
        draw=_path_figure,
        defect="two steps of one run, one unnamed head",
        caveat="of the MDM alone: an ARM is told beside it and decides nothing, since its sinks "
        "can hardly move, whatever it learned (old rows never change, and all of them see the "
        "first key)",
    ),
    Claim(
        "sink_token/H11",
        "Key and value of the sink token are constants of each layer.",
        f"{_PAPER}, Eq. 5 and 6, as an identity",
        "exact",
        PROMPT,
        needs=(CONSTANTS,),
        criteria=(
            Criterion(
                "apart",
                "relative differences between the published form (the token in the sequence, a "
                "mask that shows it only itself) and constants: of keys and of values, at the "
                "layer where they are greatest, and of logits, added up",
                LESS,
                1e-5,
                "what rounding in float32 leaves of an equality",
                null="equal",
                control="its value if it saw all tokens",
            ),
        ),
        judge=_constant,
        defect="a dense mask is built at every pass and flash attention is off",
    ),
    Claim(
        "sink_token/H14",
        "A sink token costs nearly nothing, computed as here: a constant key and value, no mask.",
        f"{_PAPER}, method",
        "claimed, not measured; a dense mask costs 1.4 to 1.7 times on a CPU",
        PROMPT,
        needs=(OPERATIONS,),
        criteria=(
            Criterion(
                "operations",
                "multiplications and additions of a forward pass, with the sink token over "
                "without, less 1, at the length of each prompt",
                LESS,
                LEAST_COST,
                "one part in a hundred",
                null="no sink token",
                control="the token in the sequence, as published",
            ),
        ),
        judge=_cheap,
        defect="only the arm with the sink token loses flash attention",
        caveat="operations are counted and nothing is timed, since no rerun would repeat it; they "
        "follow from the length alone, so that the interval is over lengths and not over chance, "
        "and the share falls as texts grow, in the published form too; seconds and memory, of "
        "which a dense mask without a fast kernel takes far more, are not in it",
    ),
    Claim(
        "sink_token/H18",
        "Sinks matter causally: hiding the sink token costs more than hiding the greatest content "
        "key, and that more than a random one.",
        f"{_PAPER}; 2510.15731 finds small effects",
        "small for diffusion models without a sink token",
        PROMPT,
        needs=(KNOCK_OUTS, OPEN["sink"]),
        criteria=tuple(
            Criterion(
                name,
                f"KL from the unedited distribution in nats per masked position, {one} hidden in "
                f"every head less {other} hidden, on the same frames",
                GREATER,
                0.01,
                "a hundredth of a nat is hardly a change of any answer",
                null="no difference",
                control=f"{other} hidden",
            )
            for name, one, other in (
                ("token over key", "the sink token", "the greatest key of the canvas"),
                ("key over chance", "the greatest key of the canvas", "another key"),
            )
        ),
        judge=_causal,
        caveat="a model that was trained with its sink token has had no need to learn to do "
        "without; one that hardly looks at it has nothing to lose with it, and how far it does is "
        "told",
    ),
    Claim(
        "sink_token/H19",
        "Sink token and gate learn the same: where one is looked at, the other closes.",
        f"{_PAPER}, as an identity of the two forms",
        "not in the paper",
        PROMPT,
        needs=tuple(OPEN.values()),
        criteria=(
            Criterion(
                "correlation",
                "correlation over layers, heads and positions of the attention that does not go to "
                "the sink token with the other model's mean gate, on the same canvases",
                GREATER,
                0.5,
                "two that have less than a quarter of their variance in common are not the same",
                null="unrelated",
                control="positions shuffled within each head",
            ),
        ),
        judge=_same,
        caveat="of one pair of trained networks: the interval is over prompts, and another "
        "training seed may say otherwise (the table of seeds has no openness by head); head by "
        "head, where those that began alike (the lab's go on from one) may have the same heads "
        "and others need not",
    ),
    Claim(
        "sink_token/H20",
        "The sink token affects in-context learning: once it is hidden, answers that a passage "
        "tells are less likely, and lose more than answers that none tells.",
        f"{_PAPER}, README",
        "announced without direction, numbers not known to us",
        ITEM,
        needs=(IN_CONTEXT, OPEN["sink"]),
        criteria=(
            Criterion(
                "told",
                "log-probability per token of the answer after its passage, as the model is less "
                "with the sink token hidden: above 0 if hiding harms",
                GREATER,
                LEAST_LOSS,
                "a tenth of a nat is a tenth of the odds of every token",
                null="no difference",
                control="the same without any passage",
            ),
            Criterion(
                "more than untold",
                "that difference less the same difference without any passage",
                GREATER,
                0.0,
                "what all answers lose alike is not lost to in-context learning",
                null="as much as without a passage",
            ),
        ),
        judge=_in_context,
        defect="the experiments that the README announces are in no file",
        caveat="of one model whose sink token is hidden when it answers; of facts that only the "
        "prompt tells, not a slope over examples; an answer at its ceiling can be harmed unseen",
    ),
)
