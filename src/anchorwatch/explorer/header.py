"""What a page is told of a run before any array: names, sizes, tokens, and what is left out.

Every text in it is foreign. Controls and other invisible characters are marks here already, and
what is long is clipped, so that the page has nothing to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from anchorwatch import __version__
from anchorwatch.edits.spec import from_dict
from anchorwatch.explorer.layers import class_names, has_sink, regions_of
from anchorwatch.explorer.opening import OpenedTrace
from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.trace.escape import one_line, visible
from anchorwatch.trace.trace import MISSING, ROLES, Trace

VERSION = 1
LONGEST_TOKEN = 160
LONGEST_TEXT = 2000
_PEAKED = "at the key that receives most"


def header(opened: OpenedTrace, rule: Rule) -> dict[str, Any]:
    """Of a run that can be shown: everything but arrays."""
    trace = opened.trace
    assert trace is not None
    manifest = trace.manifest
    frames, positions = trace.canvas.shape
    return {
        "version": VERSION,
        "anchorwatch": __version__,
        "name": opened.name,
        "digest": "" if "canvas" in opened.lost else trace.digest()[:12],
        "model": _model(manifest["model"]),
        "decoding": _decoding(manifest["decoding"]),
        "edits": [_clip(one_line(repr(edit)), 120) for edit in trace.edits],
        "fork": manifest["fork"]["step"] if "fork" in manifest else None,
        "seed": trace.seed,
        "prompt": _clip(visible(trace.prompt), LONGEST_TEXT),
        "answer": _clip(visible(trace.text), LONGEST_TEXT),
        "frames": frames,
        "steps": frames - 1,
        "positions": positions,
        "answer_positions": trace.answer.tolist(),
        "progress": trace.progress.tolist(),
        "roles": list(ROLES),
        "regions": [_clip(one_line(name), 40) for name in manifest["regions"]],
        "classes": [_clip(one_line(name), 40) for name in class_names(trace)],
        "class_kind": "region" if regions_of(trace) else "role",
        "added": has_sink(trace),
        "tokens": tokens(trace),
        "rule": str(rule),
        "left_masked": trace.num_left_masked,
        "damage": list(opened.damage),
        "lost": list(opened.lost),
    }


def tokens(trace: Trace) -> list[dict[str, Any]]:
    """Every token of the canvas history, in the order of ids; `frames` counts in this list.

    Two tokens are the same if they have the same digest, or none and the same text.
    """
    ids = np.unique(trace.canvas[trace.canvas != MISSING]).tolist()
    split = trace.manifest.get("token_bytes", {})
    found = []
    for token_id in ids:
        text = trace.token(token_id)
        shown = visible(text[:LONGEST_TOKEN])
        one: dict[str, Any] = {"id": token_id, "text": shown}
        if len(text) > LONGEST_TOKEN:
            one["length"] = len(text)
        if shown.replace("⏎\n", "\n") != text[:LONGEST_TOKEN]:
            one["escaped"] = _clip(ascii(text[:LONGEST_TOKEN])[1:-1], LONGEST_TOKEN)
        if str(token_id) in split:
            one["bytes"] = str(split[str(token_id)])[:LONGEST_TOKEN]
        if one.keys() & {"length", "escaped", "bytes"}:  # else what is shown is the whole of it
            whole = f"{text}\0{split.get(str(token_id), '')}".encode("utf-8", "surrogatepass")
            one["digest"] = sha256(whole).hexdigest()[:16]
        found.append(one)
    return found


def measures(trace: Trace) -> tuple[list[dict[str, Any]], list[str]]:
    """Fields with a number for each step, layer and head; of peaks the first, of groups all.

    And what is said of those that have numbers for other layers and heads than the model.
    """
    found, said = [], []
    model = trace.manifest["model"]
    for name in trace.fields:
        field = trace[name]
        if field.dtype.kind != "f" or field.dims[:3] != ("step", "layer", "head"):
            continue
        if field.dims[3:] not in ((), ("peak",)) and name != "sink_received":
            continue
        if field.shape[1:3] != (model["layers"], model["heads"]):
            layers, heads = field.shape[1:3]
            what = f"it is of {layers} layers and {heads} heads, not of all"
            said.append(f"{one_line(name)[:60]} cannot be shown: {what}")
            continue
        says = one_line(str(field.attrs.get("long_name", name)))
        if field.dims[3:] == ("peak",):
            says = f"{says.removesuffix(', at peak keys')}, {_PEAKED}"
        unit = one_line(str(field.attrs.get("units", "")))
        found.append({"name": one_line(name)[:60], "unit": unit[:40], "says": says[:200]})
    return found, said


def damaged_run_header(opened: OpenedTrace) -> dict[str, Any]:
    """Of a run that cannot be shown: its name, and why."""
    return {"version": VERSION, "name": opened.name, "damage": list(opened.damage)}


def _model(model: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {
        name: _clip(one_line(str(model.get(name, ""))), 120)
        for name in ("source", "family", "kind", "visibility")
    }
    kept |= {name: model[name] for name in ("layers", "heads")}
    parts = [from_dict(fields) for fields in model.get("parts", ())]
    return kept | {"parts": [_clip(one_line(repr(part)), 120) for part in parts]}


def _decoding(fields: dict[str, Any]) -> str:
    given = [
        f"{key}={value}"
        for key, value in fields.items()
        if key != "name" and value not in (None, 0.0, False)
    ]
    return _clip(one_line(f"{fields['name']}({', '.join(given)})"), 200)


def _clip(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def list_numbers(numbers: Sequence[int], most: int = 16) -> str:
    """Numbers in words: `0, 2, 4 and 13 more`."""
    said = ", ".join(map(str, numbers[:most]))
    return said if len(numbers) <= most else f"{said} and {len(numbers) - most} more"
