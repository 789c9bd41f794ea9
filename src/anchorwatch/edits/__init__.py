"""What to change inside attention, as frozen values that say what, where and when. No torch here.

An edit acts on `layers` and `heads`, at `steps` or while `progress` (share of the answer written)
is in [low, high); None is everywhere and always. It stands in the manifest, and what it decided
stands in the trace, so that a replay repeats it. Hiding empties a key's column for every query; a
row that would lose its last key keeps its best one, and `spared_rows` counts those.

>>> hide_keys([0, 3], layers=[2])
hide_keys(positions=(0, 3), layers=(2,))
"""

from anchorwatch.edits.edit import Edit, no_op
from anchorwatch.edits.heads import knock_out, random_heads
from anchorwatch.edits.keys import (
    DETECT,
    FORMS,
    MATCHES,
    SCOPES,
    Detecting,
    Hiding,
    Oracle,
    hide_keys,
    hide_lowest,
    hide_random,
    hide_sinks,
)
from anchorwatch.edits.plan import EDITS, fields_of, from_dict, limited, slots

__all__ = [
    "DETECT",
    "EDITS",
    "FORMS",
    "MATCHES",
    "SCOPES",
    "Detecting",
    "Edit",
    "Hiding",
    "Oracle",
    "fields_of",
    "from_dict",
    "hide_keys",
    "hide_lowest",
    "hide_random",
    "hide_sinks",
    "knock_out",
    "limited",
    "no_op",
    "random_heads",
    "slots",
]
