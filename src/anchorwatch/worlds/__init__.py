"""Made-up worlds: question items, and text with triggers, that need no download. No torch here.

>>> from anchorwatch import worlds
>>> item = worlds.World("held-out", hops=2)[0]
>>> item.prompt().endswith("Answer:")
True
"""

from anchorwatch.worlds.chains import Backcopy
from anchorwatch.worlds.draws import Draw
from anchorwatch.worlds.item import Item, Passage
from anchorwatch.worlds.names import SPLITS, fragments, split_of
from anchorwatch.worlds.relations import RELATIONS
from anchorwatch.worlds.world import Distractors, World, items

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
    "items",
    "split_of",
]
