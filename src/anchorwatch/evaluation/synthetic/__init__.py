"""Made-up worlds: question items, and text with triggers, that need no download.

>>> from anchorwatch import worlds
>>> item = worlds.World("held-out", hops=2)[0]
>>> item.prompt().endswith("Answer:")
True
"""

from anchorwatch.evaluation.synthetic.backcopy import Backcopy
from anchorwatch.evaluation.synthetic.draws import Draw
from anchorwatch.evaluation.synthetic.names import SPLITS, fragments, split_of
from anchorwatch.evaluation.synthetic.relations import RELATIONS
from anchorwatch.evaluation.synthetic.world import (
    Distractors,
    Item,
    Passage,
    World,
    guesser_chance,
    items,
)

__all__ = [
    "RELATIONS",
    "SPLITS",
    "Backcopy",
    "Distractors",
    "Draw",
    "Item",
    "Passage",
    "World",
    "fragments",
    "guesser_chance",
    "items",
    "split_of",
]
