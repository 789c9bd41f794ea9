"""A run, or two to compare, as one page to send, or as a folder for a plain web server.

One page holds the mean over heads of at most sixteen layers in eight bits, exact shares of sinks
only, and says so. It is never above eight megabytes: layers are left out until it fits, or those
that were named are refused. A folder holds all layers. A part that cannot be read is left out of
either, and named among what is damaged.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from anchorwatch.errors import SpecError
from anchorwatch.explorer import page
from anchorwatch.explorer.run_data import MissingError, Run, list_numbers
from anchorwatch.trace import atomic_io

LIMIT_BYTES = 8_000_000
MOST_MAPS_BYTES = 1_500_000
"""Exact maps that are put into a page, as base64."""
_LESS = (16, 12, 8, 6, 4, 3, 2, 1)
_ELSEWHERE = "export a folder, -o NAME without .html, or look with `anchorwatch view`"
_NO_HEADS = "single heads and query groups are not in this page: `anchorwatch view` shows them"
T = TypeVar("T")


def export(
    runs: Sequence[Run],
    out: str | Path,
    *,
    layers: Sequence[int] | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Write one page (`NAME.html`), or a folder of files for a web server (any other name).

    `say` gets a sentence for whatever is damaged and whatever is left out.
    """
    if not runs:
        raise SpecError("name at least one trace, as `anchorwatch run -o` writes it")
    target = atomic_io.expand_path(out)
    atomic_io.refuse_inside_trace(target)
    if target.suffix.lower() in (".html", ".htm"):
        if target.is_dir():
            raise SpecError(f"{target} is a folder: name a file, page.html")
        data, text = _drop_layers_to_fit(runs, layers)
        atomic_io.replace_file(target, text.encode())
        headers = [run["header"] for run in data["runs"]]
    else:
        with atomic_io.stage_folder(target) as folder:
            headers = _fill(folder, runs, layers)
    if say is not None:
        for header in headers:
            for sentence in (*header["damage"], *header.get("left_out", ())):
                if sentence != _NO_HEADS:
                    say(f"{header['name']}: {sentence}")
    return target


def whole(runs: Sequence[Run], *, layers: Sequence[int] | None = None) -> str:
    """The page as text, under `LIMIT_BYTES`."""
    return _drop_layers_to_fit(runs, layers)[1]


def _drop_layers_to_fit(
    runs: Sequence[Run], layers: Sequence[int] | None
) -> tuple[dict[str, Any], str]:
    """(data, page): layers are left out until it fits; those that were named are not."""
    for most in _LESS if layers is None else _LESS[:1]:
        data = _inline(runs, layers, most)
        text = page.page(_title(runs), data)
        if (size := len(text.encode())) <= LIMIT_BYTES:
            return data, text
    what = "these runs" if layers is None else f"{len({*layers})} layers of these runs"
    less = "" if layers is None else "name fewer layers, "
    raise SpecError(
        f"{what} take {size} bytes, more than a page's {LIMIT_BYTES}: {less}{_ELSEWHERE}"
    )


def choose_layers(count: int, most: int) -> list[int]:
    """At most so many of `count` layers, evenly, first and last among them."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count - 1]
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})


def _inline(runs: Sequence[Run], layers: Sequence[int] | None, most: int) -> dict[str, Any]:
    inlined = []
    for index, run in enumerate(runs):
        packets: dict[str, str] = {}
        too_large = 0
        if run.opened.trace is not None:
            kept = (
                choose_layers(run.layers, most)
                if layers is None
                else _requested_layers(run, layers)
            )
            packets = _parts(run, run.keys(kept), partial(_pack, run))
            maps, too_large = _maps(run)
            packets |= maps
        header = _static_header(run, packets.keys(), too_large)
        inlined.append({"id": index, "name": run.opened.name, "header": header, "packets": packets})
    return {"source": "inline", "runs": inlined}


def _requested_layers(run: Run, layers: Sequence[int]) -> list[int]:
    for layer in layers:
        if not 0 <= layer < run.layers:
            raise SpecError(
                f"layer {layer} is not in {run.opened.name}: it has 0 to {run.layers - 1}"
            )
    return sorted(set(layers))


def _parts(run: Run, keys: Sequence[str], make: Callable[[str], T]) -> dict[str, T]:
    """Packets by key; one that cannot be read is left out and is a problem of the run."""
    packets = {}
    for key in keys:
        try:
            packets[key] = make(key)
        except MissingError as error:
            sentence = f"{key} is left out: {error}"
            run.problems += [sentence] if sentence not in run.problems else []
    if "frames" in keys and "frames" not in packets:
        run.give_up(SpecError("its frames cannot be read"))
    return packets


def _static_header(run: Run, keys: Collection[str], too_large: int = 0) -> dict[str, Any]:
    """The header of a page that cannot ask again, with what it lacks in words."""
    header = run.header()
    if run.opened.trace is None:
        return header
    kept = [layer for layer in header["layers"] if f"layer-{layer}" in keys]
    if len(kept) < len(header["layers"]):
        only = f"{len(kept)} of {len(header['layers'])} layers are in this page"
        header["left_out"].append(f"{only}: {list_numbers(kept)}" if kept else only)
    if too_large:
        only = f"{too_large} of {len(header['maps'])} exact maps are too large for this page"
        header["left_out"].append(f"{only}: {_ELSEWHERE}")
    header["layers"], header["flow"] = kept, "flow" in keys
    header["maps"] = [pick for pick in header["maps"] if _map_key(pick) in keys]
    header["left_out"].append(_NO_HEADS)
    header["on_demand"] = {"heads": False, "rows": False, "maps": False, "live": False}
    return header


def _maps(run: Run) -> tuple[dict[str, str], int]:
    """The exact maps of the trace that fit, first ones first, and how many do not."""
    keys = [_map_key(pick) for pick in run.maps()]
    packets: dict[str, str] = {}
    room = MOST_MAPS_BYTES
    for index, key in enumerate(keys):
        packed = _parts(run, [key], partial(_pack, run))
        room -= sum(map(len, packed.values()))
        if room < 0:  # the rest is not read at all: there may be hundreds
            return packets, len(keys) - index
        packets |= packed
    return packets, 0


def _map_key(pick: Sequence[int]) -> str:
    return "map-" + "-".join(map(str, pick))


def _pack(run: Run, key: str) -> str:
    return _compress(run.small_packet(key))


def _compress(packet: bytes) -> str:
    """Compressed, the same bytes for the same packet, as text."""
    return base64.b64encode(gzip.compress(packet, 6, mtime=0)).decode()


def _fill(folder: Path, runs: Sequence[Run], layers: Sequence[int] | None) -> list[dict[str, Any]]:
    """Write the files, and return the headers among them."""
    listed = {
        "source": "static",
        "runs": [{"id": a, "name": r.opened.name} for a, r in enumerate(runs)],
    }
    texts = {
        "index.html": page.shell(_title(runs), listed),
        "app.js": page.read_built("app.js"),
        "app.css": page.read_built("app.css"),
    }
    for name, text in texts.items():
        atomic_io.put_file(folder / name, text.encode())
    headers = []
    for index, run in enumerate(runs):
        path = folder / "data" / str(index)
        path.mkdir(parents=True)
        keys: Collection[str] = ()
        if run.opened.trace is not None:
            kept = range(run.layers) if layers is None else _requested_layers(run, layers)
            wanted = [*run.keys(kept), *map(_map_key, run.maps())]
            keys = _parts(run, wanted, partial(_write_packet, run, path))
        headers.append(_static_header(run, keys))
        atomic_io.put_file(path / "header.json", json.dumps(headers[-1], allow_nan=False).encode())
    return headers


def _write_packet(run: Run, path: Path, key: str) -> None:
    atomic_io.put_file(path / f"{key}.bin", run.sent_packet(key))


def _title(runs: Sequence[Run]) -> str:
    return "anchorwatch: " + " and ".join(run.opened.name for run in runs)
