"""Claims of 2601.07894 about shallow and deep layers: what makes anchors, what they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.depths import by_layer, deep, rise, shallow
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import by_prompt, mean_of, means_of
from anchorwatch.studies.needs import Rows
from anchorwatch.studies.papers.floating.anchor_rule import floating
from anchorwatch.studies.papers.floating.anchors import MDM
from anchorwatch.studies.sets import TEMPLATE

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2601.07894"
_PART = (-1.0, 1.0)
HALVES = Rows("mdm", "hidden_in_halves", passes=96)
_RULE = {"rule": floating()}


def _angle(evidence: Evidence) -> Finding:
    angle, norm = (
        by_prompt(evidence, MDM, "qk_split", name, over="layer", options=_RULE).value
        for name in ("angle_share", "norm_share")
    )
    longer = _norm_helps(evidence)
    also = {
        f"{name}, {where} half": mean_of(half(held))
        for name, held in (
            ("angle share", angle),
            ("norm share", norm),
            ("heads in which the norm helps", longer),
        )
        for where, half in (("shallow", shallow), ("deep", deep))
    }
    return Finding(
        {
            "deep norm": Measured(Estimate.mean(deep(norm), PROMPT, _PART), null=0.0),
            "shallow norm": Measured(Estimate.mean(shallow(norm), PROMPT, _PART), null=0.0),
            "rise of the angle": Measured(Estimate.mean(rise(angle), PROMPT), null=0.0),
        },
        also,
    )


def _norm_helps(evidence: Evidence) -> np.ndarray:
    """[prompt, layer] share of heads whose anchors the norm works for: parts of either sign may
    cancel in a sum, signs do not."""
    held = evidence[MDM]
    table = evidence.once(
        (MDM, "qk_split", "head"),
        lambda: metrics.qk_split(list(held.traces), floating(), by=["prompt", "layer", "head"]),
    )
    norm = table[table["quantity"] == "norm"].dropna(subset="value")
    helps = norm.assign(value=(norm["value"] > 0).astype(float))
    rows = helps.groupby(["prompt", "layer"], as_index=False)["value"].mean()
    return by_layer(held, rows)


def _angle_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.geometry import shapley_bars

    return shapley_bars(metrics.qk_split(list(evidence[MDM].traces), floating()))


def _short(evidence: Evidence) -> Finding:
    ratio = by_prompt(evidence, MDM, "key_norms", "ratio", over="layer", options=_RULE).value
    also = {f"layer {at}": float(value) for at, value in enumerate(means_of(ratio))}
    return Finding({"ratio": Measured(Estimate.mean(deep(ratio), PROMPT), null=1.0)}, also)


def _structure(evidence: Evidence) -> Finding:
    kinds = {
        name: by_prompt(
            evidence, MDM, "structure", name, over="layer", options=_RULE | {"template": TEMPLATE}
        )
        for name in ("structure_of_sinks", "content")
    }
    sinks, content = kinds["structure_of_sinks"], kinds["content"]
    also = {
        f"{words}, {where} layer": mean_of(held.value[:, at])
        for words, held in (("structure among anchors", sinks), ("attention on content", content))
        for where, at in (("first", 0), ("last", -1))
    }
    fall = Estimate.mean(rise(sinks.value - sinks.null), PROMPT)
    more = Estimate.mean(rise(content.value - content.null), PROMPT)
    return Finding({"anchors": Measured(fall, null=0.0), "content": Measured(more, null=0.0)}, also)


def _structure_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_classes import structure

    return structure(metrics.structure(list(evidence[MDM].traces), floating(), template=TEMPLATE))


def _measure_needed(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[HALVES]
    wide = table.pivot(index="unit", columns="half")
    own, deeper = (wide["did"][half].to_numpy(dtype=float) for half in ("shallow", "deep"))
    also = {
        f"KL, {words}, {half}": mean_of(wide[name][half])
        for words, name in (
            ("anchors hidden", "difference"),
            ("others hidden", "control_difference"),
        )
        for half in ("shallow", "deep")
    }
    for half in ("shallow", "deep"):
        for words, arm in (("anchors", "edited"), ("others", "control")):
            for what, name in (("keys of a head", "hidden_keys"), ("attention", "hidden_share")):
                also[f"{what} hidden, {words}, {half}"] = mean_of(wide[f"{name}_{arm}"][half])
    control = mean_of(wide["control_difference"]["shallow"])
    return Finding(
        {
            "beyond the control": Measured(Estimate.mean(own, PROMPT), 0.0, control),
            "beside deep layers": Measured(
                Estimate.mean(own - deeper, PROMPT), 0.0, mean_of(deeper)
            ),
        },
        also,
    )


CLAIMS = (
    Claim(
        "floating/H11",
        "Deep anchors are made by the angle between query and key, shallow ones also by norms.",
        f"{_PAPER}, QK figure",
        "angle 63 %, norm 37 % at layer 11; 128 and -28 % at layer 28",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "deep norm",
                "norm's part of an anchor's logit advantage (Shapley, over the sizes of both "
                "parts), last half of the layers",
                LESS,
                0.1,
                "under a tenth is mainly angle; -.18 follows from the figure's layer 28",
                null="a key like the others",
            ),
            Criterion(
                "shallow norm",
                "the same of the first half",
                GREATER,
                0.1,
                "a tenth is a joint effect; .37 at the figure's layer 11",
                null="a key like the others",
            ),
            Criterion(
                "rise of the angle",
                "change of the angle's part from the first layer to the last (least squares)",
                GREATER,
                0.1,
                "a tenth, where the figure has a third between two layers",
                null="all layers alike",
            ),
        ),
        judge=_angle,
        draw=_angle_figure,
        defect="vectors are averaged over heads before the cosine; grouped heads are mismatched",
        caveat="a network that normalises queries and keys leaves norms little room to differ",
    ),
    Claim(
        "floating/H12",
        "Anchor keys have a small norm in deep layers.",
        f"{_PAPER}, QK figure",
        "norm product 4.73 against 7.06 at layer 28",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "ratio",
                "norm of an anchor's key over that of the other keys of its head, last half of the "
                "layers",
                LESS,
                0.95,
                "a twentieth shorter; a third in the figure",
                null="a key like the others",
            ),
        ),
        judge=_short,
        defect="vectors are averaged over heads before the norm",
        caveat="a network that normalises keys leaves their norms little room to differ",
    ),
    Claim(
        "floating/H16",
        "Shallow anchors are structural tokens, deep attention is on content.",
        f"{_PAPER}, abstract",
        "qualitative",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "anchors",
                "change from the first layer to the last (least squares) of the part of the "
                "anchors' attention that is on structural tokens, beyond even attention",
                LESS,
                -0.1,
                "a tenth of the anchors' attention",
                null="all layers alike",
            ),
            Criterion(
                "content",
                "the same of the share of all attention on content, beyond even attention",
                GREATER,
                0.05,
                "a twentieth of all attention",
                null="all layers alike",
            ),
        ),
        judge=_structure,
        draw=_structure_figure,
        defect="no figure shows a token",
        caveat="structure is punctuation, line breaks, function words, special tokens and the "
        "prompt's template; a masked position is neither",
    ),
    Claim(
        "floating/H17",
        "Anchors are needed: hiding them in shallow layers changes predictions more than hiding as "
        "many other keys of the same kind, and more than in deep layers.",
        f"{_PAPER}, abstract; 2510.15731 says hiding the greatest costs under a point",
        "not reported",
        PROMPT,
        needs=(HALVES,),
        criteria=(
            Criterion(
                "beyond the control",
                "KL from the unedited distribution, in nats, anchors hidden in the first half of "
                "the layers less other keys hidden there",
                GREATER,
                0.01,
                "a hundredth of a nat is hardly a change of any answer",
                null="the same as the control",
                control="as many other keys of the same kind of token",
            ),
            Criterion(
                "beside deep layers",
                "the same, less that of the last half",
                GREATER,
                0.01,
                "a hundredth of a nat",
                null="both halves alike",
                control="the last half",
            ),
        ),
        judge=_measure_needed,
        defect="no intervention was released",
        caveat="up to three keys above mean + 3 sd of each head. KL says that predictions change, "
        "not that they become worse; halves differ in how much attention is hidden, which is given "
        "beside",
    ),
)
