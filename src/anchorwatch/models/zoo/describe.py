"""What the files of a model on board say of it, without loading it. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorwatch.errors import ModelError
from anchorwatch.models.zoo import SPECIMENS, cards, current_name, folder_in_package, smol
from anchorwatch.trace.atomic_io import COMMIT, read_record

FETCH = "anchorwatch fetch smol"


@dataclass(frozen=True)
class ModelRecord:
    """What is known of a model on board; absent is None."""

    name: str
    kind: str
    """mdm or arm."""
    parts: tuple[str, ...]
    shape: dict[str, Any]
    parameters: int
    """Of the whole network, a delta's too."""
    bytes: int | None
    """Of the weights as they are stored, of a delta alone."""
    files: str | None
    """Digest of all files."""
    weights: str | None = None
    """Digest of the weights, as `aw.load` gives it; it stands on the card."""
    delta_of: str | None = None
    delta_digest: str | None = None
    """Digest of the tensors that the delta changes."""
    needs: str | None = None
    """The command that brings what is not in the package."""
    card: str | None = None
    """Where the card is, to read."""
    budget: dict[str, Any] | None = None
    answers: dict[str, Any] | None = None


def describe_model(name: str) -> ModelRecord:
    """Kind, parts, size and digests, and what the card says or what the model is a delta of."""
    name = current_name(name)
    if name == "lab/smol-base":
        return _describe_base()
    folder = folder_in_package(name)
    config = read_record(folder / "config.json")
    ours = config["anchorwatch"]
    common = {
        "name": name,
        "kind": ours["kind"],
        "parts": tuple(part["name"] for part in ours["parts"]),
        "shape": _read_shape(config),
        "bytes": _count_weight_bytes(folder),
        "files": read_record(folder / COMMIT)["digest"],
    }
    if delta := ours.get("delta"):
        return ModelRecord(
            **common,
            parameters=describe_model(delta["from"]).parameters,
            delta_of=delta["from"],
            delta_digest=delta["digest"],
            needs=FETCH if name in SPECIMENS else None,
        )
    card = cards.read(folder)
    return ModelRecord(
        **common,
        parameters=card["parameters"],
        weights=card["weights"],
        card=str(folder / cards.WORDS),
        budget=card["training"]["budget"],
        answers=card["measured"]["answers"],
    )


def _describe_base() -> ModelRecord:
    """The network that the smol models are deltas of; its files may not be there yet."""
    try:
        folder: Path | None = smol.base_folder()
    except ModelError:
        folder = None
    return ModelRecord(
        name=f"lab/{smol.NAME}",
        kind="arm",
        parts=(),
        shape=_read_shape(read_record(folder_in_package("lab/smol-arm") / "config.json")),
        parameters=smol.PARAMETERS,
        bytes=_count_weight_bytes(folder) if folder else None,
        files=read_record(folder / COMMIT)["digest"] if folder else None,
        needs=FETCH,
    )


def _read_shape(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "network": config["model_type"],
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "width": config["hidden_size"],
        "positions": config["max_position_embeddings"],
    }


def _count_weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
