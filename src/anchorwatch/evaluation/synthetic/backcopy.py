"""Text that gives attention heads a reason to be dormant: a trigger word, and nothing else, copies.

Words follow a bigram chain, each drawn from a few successors that never change; after a trigger the
word before it comes again (Guo et al., 2410.13835: bigram-backcopy). A head that copies has nothing
to do at every other word.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic.draws import Draw

WORDS = tuple(
    """
    anchor ballast bay beacon bell berth boat bow bridge buoy cabin cable calm captain cargo chart
    clouds coast compass course crew current dawn deck depth dock drift ebb ferry fleet flood fog
    gale galley harbour haul heading helm horizon hull island jetty keel knot lantern line lookout
    mast mate mooring moon morning night oar pier pilot port quay rain reef rigging rope rudder
    sail sailor sand shoal shore signal squall star stern storm strait stream surf swell tide
    tiller tow vessel voyage wake watch wave wharf wheel wind yard
    """.split()
)
TRIGGERS = ("again", "echo", "likewise")


@dataclass(frozen=True)
class Backcopy:
    """How trigger-copy text is drawn; `backcopy.words(seed, i, count)` is some of it."""

    triggers: float = 0.1
    """Share of the chain's words that are followed by a trigger; 0 leaves a plain bigram chain."""
    back: int = 1
    """How many words before the trigger the copied one stands, other triggers not counted."""
    successors: int = 8
    """Words that may follow a word."""

    def __post_init__(self) -> None:
        if not 0 <= self.triggers <= 1:
            raise SpecError(f"triggers={self.triggers!r} is a share: expected 0 to 1")
        if not 1 <= self.back <= 16:
            raise SpecError(f"back={self.back!r}: expected 1 to 16 words")
        if not 1 <= self.successors < len(WORDS):
            raise SpecError(f"successors={self.successors!r}: expected 1 to {len(WORDS) - 1}")

    def words(self, seed: int, index: int, count: int) -> list[str]:
        """`count` words of text number `index`; a longer one begins as a shorter one does."""
        draw = Draw("backcopy", seed, index)
        text = [draw.pick(WORDS)]
        plain = text[:]  # without the triggers
        while len(text) < count:
            if len(plain) >= self.back and draw.chance(self.triggers):
                plain.append(plain[-self.back])
                text += [draw.pick(TRIGGERS), plain[-1]]
            plain.append(draw.pick(_successors(plain[-1], self.successors)))
            text.append(plain[-1])
        return text[:count]


@cache
def _successors(word: str, count: int) -> tuple[str, ...]:
    others = [other for other in WORDS if other != word]  # only a trigger repeats a word
    return tuple(Draw("successors", word).shuffle(others)[:count])
