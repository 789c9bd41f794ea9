"""What to change inside attention or on the canvas, as frozen values: what, where, when. No torch.

An edit acts on `layers` and `heads`, at `steps` or while `progress` (share of the answer written)
is in [low, high); None is everywhere and always. It stands in the manifest, and what it decided
stands in the trace, so that a replay repeats it. Hiding empties a key's column for every query; a
row that would lose its last key keeps its best one, and `spared_rows` counts those. Edits of the
canvas act before a step on what all layers read: `swap_token`, `force_commit`, `delay_commit`,
`freeze_canvas`. Parts add something to the network: `sink_token`, `register`, `off_by_one`,
`sink_logit`, `kv_bias`, `gate`.

>>> hide_keys([0, 3], layers=[2])
hide_keys(positions=(0, 3), layers=(2,))
"""

from anchorwatch.edits.spec.additions import (
    Numbers,
    Part,
    gate,
    given_again,
    kv_bias,
    off_by_one,
    parts_among,
    register,
    sink_logit,
    sink_token,
)
from anchorwatch.edits.spec.canvas import (
    CanvasEdit,
    RunLimits,
    check_canvas,
    delay_commit,
    force_commit,
    freeze_canvas,
    swap_token,
)
from anchorwatch.edits.spec.edit import Edit, no_op
from anchorwatch.edits.spec.heads import knock_out, random_heads
from anchorwatch.edits.spec.keys import (
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
from anchorwatch.edits.spec.plan import EDITS, fields_of, from_dict, limit_to_steps, slots

__all__ = [
    "DETECT",
    "EDITS",
    "FORMS",
    "MATCHES",
    "SCOPES",
    "CanvasEdit",
    "Detecting",
    "Edit",
    "Hiding",
    "Numbers",
    "Oracle",
    "Part",
    "RunLimits",
    "check_canvas",
    "delay_commit",
    "fields_of",
    "force_commit",
    "freeze_canvas",
    "from_dict",
    "gate",
    "given_again",
    "hide_keys",
    "hide_lowest",
    "hide_random",
    "hide_sinks",
    "knock_out",
    "kv_bias",
    "limit_to_steps",
    "no_op",
    "off_by_one",
    "parts_among",
    "random_heads",
    "register",
    "sink_logit",
    "sink_token",
    "slots",
    "swap_token",
]
