"""Every figure, drawn from the tales: `make figures` writes docs/figures.

Six questions of `lab/tales-mdm`, `-arm` and `-sink`: what a figure looks like, not a finding.
"""

from __future__ import annotations

from pathlib import Path

import anchorwatch as aw
from anchorwatch.figures import FIGURES, draw
from anchorwatch.trace.trace import Trace

FOLDER = Path(__file__).parent / "figures"
TALES = ("lab/tales-mdm", "lab/tales-arm", "lab/tales-sink")
TINY = ("tiny/llada", "tiny/arm", "tiny/llada")
"""Random weights; a sink token is added. Tests draw every figure from these."""
PROMPTS = 6
PLACES = ("Oslo", "the harbor", "the west", "the shore", "the sea", "the north")
PEOPLE = ("Lena", "the captain", "the lookout", "the crew", "the mate", "the pilot")
OPTIONS = {
    "sink-map": {"layer": 1, "rule": aw.rules.rulli(2)},
    "map-pair": {"step": 4, "layer": 1, "head": 2},
    "qk-maps": {"step": 4, "layer": 1, "head": 2},
    "attention-map": {"step": 4, "layer": 1, "head": 2},
    "qk-triptych": {"step": 4, "layer": 1, "head": 2},
    "gold-lift": {"gold": "gold", "distractors": ["doc1", "doc2"]},
    "retrieval-map": {"gold": "gold"},
    "retrieval-contrast": {"gold": "gold", "distractors": ["doc1", "doc2"]},
    "score-histogram": {"edges": [n / 2 for n in range(25)]},
}
ONE_TRACE = (
    *("sink-map", "map-pair", "attention-map", "qk-maps", "qk-triptych"),
    *("sink-positions", "sink-path"),
)
WITH_SINK = ("sink-mass", "sink-mass-steps")
"""Figures of added keys, drawn from runs with a sink token."""
PROBES = (
    *aw.probes.DEFAULT[:3],
    aw.probes.qk_geometry(keys=True),
    aw.probes.norms(keys=True, contribution=True),
    aw.probes.top_keys(),
    aw.probes.region_flow(),
    aw.probes.region_rollout(),
    aw.probes.commit_regions(),
    aw.probes.mixing(),
    aw.probes.massive(),
    aw.probes.pattern(layers=[1], heads=[2], steps=[4, 5]),
    aw.probes.qk_maps(layers=[1], heads=[2], steps=[4]),
)


def prompts(names: tuple[str, ...]) -> list[tuple[str, dict[str, tuple[int, int]]]]:
    """Prompts with three passages, and where each stands: of words that the models know."""
    if names == TINY:
        return [build_prompt(number) for number in range(PROMPTS)]
    beside = aw.worlds.Distractors(random=1, hard=1)
    items = aw.worlds.items("held-out", n=PROMPTS, distractors=beside)
    called = {"distractor 1": "doc1", "distractor 2": "doc2"}
    return [
        (
            item.prompt(),
            {called.get(name, name): span for name, span in item.regions().items()},
        )
        for item in items
    ]


def build_prompt(number: int) -> tuple[str, dict[str, tuple[int, int]]]:
    """A prompt with three passages in the few words of the tiny models, and where each stands."""
    parts = {
        "doc1": f"the ship of {PEOPLE[(number + 1) % 6]} is at {PLACES[(number + 2) % 6]}.\n",
        "gold": f"{PEOPLE[number]} was born in {PLACES[number]}.\n",
        "doc2": f"the anchor of {PEOPLE[(number + 3) % 6]} holds in {PLACES[(number + 4) % 6]}.\n",
        "question": f"where was {PEOPLE[number]} born?",
    }
    text, spans = "", {}
    for name, part in parts.items():
        spans[name] = (len(text), len(text) + len(part))
        text += part
    return text, spans


def runs(names: tuple[str, ...] = TALES) -> list[Trace]:
    """Six prompts of a diffusion model, of an autoregressive one, and of one with a sink token."""
    mdm, arm, sink = (aw.load(name) for name in names)
    given = prompts(names)
    masks = aw.decoding.LowConfidence(length=16, steps=16, block=8)
    causal = aw.decoding.LeftToRight(length=16, cache=False, stop=False)
    traces = [
        aw.run(model, prompt, how, regions=regions, probes=PROBES)
        for model, how in ((mdm, masks), (arm, causal))
        for prompt, regions in given
    ]
    added = () if sink.parts else (aw.edits.sink_token(),)
    return traces + [aw.run(sink, prompt, masks, edits=added) for prompt, _ in given]


def choose(name: str, traces: list[Trace]) -> list[Trace]:
    """The traces that a figure is drawn from."""
    if name in WITH_SINK:
        return traces[12:]
    return traces[:1] if name in ONE_TRACE else traces[:12]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    traces = runs()
    for name in FIGURES:
        figure = draw(name, choose(name, traces), OPTIONS.get(name))
        figure.save(FOLDER / f"{name}.svg")
    rows = [f"| `{name}` | ![{name}]({name}.svg) |" for name in FIGURES]
    says = f"# Figures\n\n{__doc__.splitlines()[2]}\n`anchorwatch plot NAME TRACE... -o file.pdf` "
    says += "draws each of them from your traces.\n\n| name | picture |\n|---|---|\n"
    (FOLDER / "README.md").write_text(says + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
