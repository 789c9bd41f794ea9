"""What to change inside attention or on the canvas: one class for each edit, what, where and when.

An edit acts on `layers` and `heads`, at `steps` or while `progress` (share of the answer written)
is in [low, high); None is everywhere and always. It stands in the manifest, and what it decided
stands in the trace, so that a replay repeats it. Hiding empties a key's column for every query, or
for the last one alone (`hide_from`); a row that would lose its last key keeps its best one, and
`spared_rows` counts those. Edits of the canvas act before a step on what all layers read:
`swap_token`, `force_commit`, `delay_commit`, `freeze_canvas`. Additions put something into the
network: `sink_token`, `register`, `off_by_one`, `sink_logit`, `kv_bias`, `gate`. How to write an
edit: see `edits/spec/edit.py`.

>>> hide_keys([0, 3], layers=[2])
hide_keys(positions=(0, 3), layers=(2,))
"""

from anchorwatch.edits.spec.attention_edits import (
    DETECT,
    FORMS,
    HIDE_FROM,
    MATCHES,
    SCOPES,
    Candidates,
    Detecting,
    Hiding,
    Oracle,
    ReceivedSums,
    hide_keys,
    hide_lowest,
    hide_random,
    hide_sinks,
    knock_out,
    mean_shares,
    no_op,
    random_heads,
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

from anchorwatch.edits.spec.additions import (  # isort: skip - EDITS lists them last
    Numbers,
    Addition,
    gate,
    kv_bias,
    off_by_one,
    additions_among,
    register,
    restore_numbers,
    sink_logit,
    sink_token,
)
from anchorwatch.edits.spec.edit import (
    EDITS,
    Edit,
    check_edits,
    fields_of,
    from_dict,
    register_edit,
    slots,
)

__all__ = [
    "DETECT",
    "EDITS",
    "FORMS",
    "HIDE_FROM",
    "MATCHES",
    "SCOPES",
    "Addition",
    "Candidates",
    "CanvasEdit",
    "Detecting",
    "Edit",
    "Hiding",
    "Numbers",
    "Oracle",
    "ReceivedSums",
    "RunLimits",
    "additions_among",
    "check_canvas",
    "check_edits",
    "delay_commit",
    "fields_of",
    "force_commit",
    "freeze_canvas",
    "from_dict",
    "gate",
    "hide_keys",
    "hide_lowest",
    "hide_random",
    "hide_sinks",
    "knock_out",
    "kv_bias",
    "mean_shares",
    "no_op",
    "off_by_one",
    "random_heads",
    "register",
    "register_edit",
    "restore_numbers",
    "sink_logit",
    "sink_token",
    "slots",
    "swap_token",
]
