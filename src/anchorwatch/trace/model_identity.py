"""Which model something is for: what a manifest says of one, compared with what another is.

A run that is gone on with, a replay, a fork, cached answers and the evidence of a study all ask the
same question. No torch here: results and evidence are read without it.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from typing import Any

from anchorwatch.errors import AnchorwatchWarning

DIGESTS = ("weights", "settings", "tokenizer")
DECIDING = (*DIGESTS, "family", "visibility", "shift", "block", "mask_id", "parts", "dtype")
"""What a manifest says of a model that decides what it computes."""
_REMEDY = "give the model as it was then: the same weights, config.json and tokenizer"


def identity_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """What of a model's description decides what it computes."""
    return {name: description[name] for name in DECIDING if name in description}


def identity_digest(description: Mapping[str, Any]) -> str:
    """SHA-256 of a model's identity."""
    spelled = json.dumps(identity_of(description), sort_keys=True)
    return hashlib.sha256(spelled.encode()).hexdigest()


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """How the model that `ours` describes is not that of `theirs`, in words; None where it is.

    What an older manifest does not say is not compared. Where both say their settings field by
    field, those that both have are compared: a new version of transformers adds some.
    """
    for name in ("dtype", *DECIDING):  # another dtype has other weights, and is the reason
        their_value, own = theirs.get(name, ours[name]), ours[name]
        if their_value == own:
            continue
        if name == "dtype":
            return (
                f"it has dtype {their_value}, {ours['source']} has {own}; "
                f"load it with dtype {their_value}"
            )
        shown = name, _shorten(their_value), _shorten(own)
        if name == "settings" and "config" in theirs and "config" in ours:
            differing = _differing_fields(ours["config"], theirs["config"])
            if differing is None:
                continue
            shown = differing
        return f"it has {shown[0]} {shown[1]}, {ours['source']} has {shown[2]}; {_REMEDY}"
    return None


def warn_of_absent(theirs: Mapping[str, Any], what: str) -> None:
    """Say once what cannot be compared because an older manifest does not have it."""
    if absent := [name for name in DIGESTS if name not in theirs]:
        warnings.warn(
            f"{what} says nothing of the model's {' and '.join(absent)}, as older ones do: "
            "not compared",
            AnchorwatchWarning,
            stacklevel=4,
        )


def _differing_fields(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> tuple[str, str, str] | None:
    """The first setting that both have and that differs: its name, theirs and ours."""
    for name in sorted(ours.keys() & theirs.keys()):
        if ours[name] != theirs[name]:
            return name, _shorten(theirs[name]), _shorten(ours[name])
    return None


def _shorten(value: Any) -> str:
    """A value in few words; digests by their beginning."""
    text = str(value)
    is_digest = isinstance(value, str) and len(text) == hashlib.sha256().digest_size * 2
    return text[:12] if is_digest else text[:80]
