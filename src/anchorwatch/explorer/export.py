"""A run, or two to compare, as one page to send, or as a folder for a plain web server.

One page holds the mean over heads of at most sixteen layers in eight bits, exact shares of sinks
only, and says so. It is never above eight megabytes: layers are left out until it fits.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anchorwatch import commits
from anchorwatch.errors import SpecError
from anchorwatch.explorer import page
from anchorwatch.explorer.header import listed
from anchorwatch.explorer.tiles import Run

LIMIT_BYTES = 8_000_000
MOST_LAYERS = 16
MOST_MAPS_BYTES = 1_500_000
"""Exact maps that are put into a page, as base64."""
_LESS = (16, 12, 8, 6, 4, 3, 2, 1)


def export(runs: Sequence[Run], out: str | Path, *, layers: Sequence[int] | None = None) -> Path:
    """Write one page (`NAME.html`), or a folder of files for a web server (any other name)."""
    if not runs:
        raise SpecError("name at least one trace, as `anchorwatch run -o` writes it")
    target = commits.place(out)
    if target.suffix.lower() in (".html", ".htm"):
        if target.is_dir():
            raise SpecError(f"{target} is a folder: name a file, page.html")
        commits.replace_file(target, whole(runs, layers=layers).encode())
        return target
    with commits.staged(target) as folder:
        _fill(folder, runs, layers)
    return target


def whole(runs: Sequence[Run], *, layers: Sequence[int] | None = None) -> str:
    """The page as text; layers are left out until it is under `LIMIT_BYTES`."""
    for most in _LESS:
        made = page.page(_title(runs), _inline(runs, layers, most))
        if len(made) <= LIMIT_BYTES:
            return made
    raise SpecError(
        f"these runs do not fit a page of {LIMIT_BYTES} bytes: look at them with "
        "`anchorwatch view`, or export a folder, -o NAME without .html"
    )


def chosen(count: int, most: int) -> list[int]:
    """At most so many of `count` layers, evenly, first and last among them."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count - 1]
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)})


def _inline(runs: Sequence[Run], layers: Sequence[int] | None, most: int) -> dict[str, Any]:
    held = []
    for at, run in enumerate(runs):
        if run.opened.trace is None:
            held.append({"id": at, "name": run.opened.name, "header": run.header()})
            continue
        kept = _layers(run, layers, most)
        packets = {key: _packed(run, key) for key in run.keys(kept)}
        maps = _maps(run)
        told = _told(run, kept, packets.keys() | maps.keys())
        told["maps"] = [[int(word) for word in key.split("-")[1:]] for key in maps]
        held.append({"id": at, "name": run.opened.name, "header": told, "packets": packets | maps})
    return {"source": "inline", "runs": held}


def _layers(run: Run, layers: Sequence[int] | None, most: int) -> list[int]:
    if layers is None:
        return chosen(run.layers, min(most, MOST_LAYERS))
    for layer in layers:
        if not 0 <= layer < run.layers:
            raise SpecError(
                f"layer {layer} is not in {run.opened.name}: it has 0 to {run.layers - 1}"
            )
    return sorted(set(layers))[: most if most < MOST_LAYERS else None]


def _told(run: Run, kept: Sequence[int], keys: Any) -> dict[str, Any]:
    """The header of a page that cannot ask again, with what it lacks in words."""
    told = run.header()
    said = told["left_out"]
    if told["layers"] and len(kept) < run.layers:
        said.append(f"{len(kept)} of {run.layers} layers are in this page: {listed(kept)}")
        told["layers"] = list(kept)
    said.append(
        "single heads and query groups are not in this page, and shares are rounded to eight bits "
        "except those of sinks: `anchorwatch view` shows all, exactly"
    )
    if told["maps"] and not any(key.startswith("map-") for key in keys):
        said.append(f"{len(told['maps'])} exact maps are too large for this page")
    told["on_demand"] = {"heads": False, "rows": False, "maps": False}
    return told


def _maps(run: Run) -> dict[str, str]:
    """The exact maps of the trace that fit, first ones first."""
    found: dict[str, str] = {}
    room = MOST_MAPS_BYTES
    for step, layer, head in run.maps():
        key = f"map-{step}-{layer}-{head}"
        packet = _squeezed(run.packet(key))
        room -= len(packet)
        if room < 0:
            break
        found[key] = packet
    return found


def _packed(run: Run, key: str) -> str:
    kind, _, at = key.partition("-")
    return _squeezed(run.small_measure(int(at)) if kind == "measure" else run.packet(key))


def _squeezed(packet: bytes) -> str:
    """Compressed, the same bytes for the same packet, as text."""
    return base64.b64encode(gzip.compress(packet, 6, mtime=0)).decode()


def _fill(folder: Path, runs: Sequence[Run], layers: Sequence[int] | None) -> None:
    told = {
        "source": "static",
        "runs": [{"id": a, "name": r.opened.name} for a, r in enumerate(runs)],
    }
    texts = {
        "index.html": page.shell(_title(runs), told),
        "app.js": page.built("app.js"),
        "app.css": page.built("app.css"),
    }
    for name, text in texts.items():
        commits.put_file(folder / name, text.encode())
    for at, run in enumerate(runs):
        place = folder / "data" / str(at)
        place.mkdir(parents=True)
        header = run.header()
        if run.opened.trace is not None:
            kept = _layers(run, layers, run.layers if layers is None else MOST_LAYERS)
            keys = [*run.keys(kept), *(f"map-{s}-{la}-{h}" for s, la, h in run.maps())]
            for key in keys:
                commits.put_file(place / f"{key}.bin", run.packet(key))
            header = _told(run, kept, set(keys))
        commits.put_file(place / "header.json", json.dumps(header, allow_nan=False).encode())


def _title(runs: Sequence[Run]) -> str:
    return "anchorwatch: " + " and ".join(run.opened.name for run in runs)
