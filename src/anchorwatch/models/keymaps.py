"""Tensor names of a file turned into the stock class's; lit-gpt's fused QKV is split here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from anchorwatch.edits.spec import Part, gate, sink_token
from anchorwatch.errors import ModelError, WeightsError
from anchorwatch.models.families import Family

_FUSED = re.compile(r"transformer\.h\.(\d+)\.attn\.attn\.(weight|bias)")

SMDM_HEADS = {
    (6, 256): 4, (8, 384): 6, (8, 512): 8, (9, 576): 9, (10, 640): 10, (13, 640): 10, (16, 640): 8,
    (12, 768): 12, (15, 768): 12, (18, 768): 12, (14, 896): 14, (16, 896): 14, (18, 896): 14,
    (16, 1024): 16, (18, 1024): 16, (20, 1024): 16, (18, 1280): 10, (21, 1280): 10, (24, 1280): 10,
    (18, 1408): 11, (21, 1408): 11, (24, 1408): 11, (19, 1536): 12, (22, 1536): 12, (25, 1536): 12,
    (20, 1792): 14, (24, 1792): 14, (22, 2048): 16, (25, 2048): 16, (28, 2176): 17,
}  # fmt: skip
"""Heads of SMDM's size ladder by (layers, width): the files do not say, and shapes cannot."""


def is_lit_gpt(shapes: Mapping[str, Any]) -> bool:
    """Whether the names are lit-gpt's."""
    return any(_FUSED.fullmatch(name) for name in shapes)


def lit_gpt_config(
    shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]
) -> dict[str, Any]:
    """SMDM's config read off the shapes; a config.json beside the file may say the rest."""
    rows, width = _matrix(shapes, "transformer.wte.weight")
    layers = 1 + max(int(found[1]) for name in shapes if (found := _FUSED.fullmatch(name)))
    heads = given.get("n_head") or SMDM_HEADS.get((layers, width))
    if heads is None:
        raise ModelError(
            f"the number of heads cannot be read off {layers} layers of width {width}, "
            "which is not on SMDM's ladder: "
            'put a config.json beside the file that says {"n_head": ...}'
        )
    fused_rows, _ = _matrix(shapes, "transformer.h.0.attn.attn.weight")
    return {
        "architectures": ["TransEncoder"],
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "n_query_groups": _groups(width, heads, fused_rows, given.get("n_query_groups")),
        "intermediate_size": _matrix(shapes, "transformer.h.0.mlp.swiglu.w1.weight")[0],
        "vocab_size": rows,
    } | {name: value for name, value in given.items() if value is not None}


def lit_gpt_parts(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Part, ...]:
    """What OneTokenIsEnough added to the vanilla model: a sink token, whose row is the embedding's
    last, or gates."""
    rows, _ = _matrix(shapes, "transformer.wte.weight")
    outputs, _ = _matrix(shapes, "lm_head.weight")
    if rows - outputs not in (1, 2):
        raise WeightsError(
            f"the embedding has {rows} rows and the unembedding {outputs}: expected one more "
            "(the mask) or two more (the mask and a sink token)"
        )
    sink = (sink_token(),) if rows - outputs == 2 else ()
    gated = any(".attn.gate." in name for name in shapes)
    return (*sink, gate(init="plain")) if gated else sink


def stock_name(family: Family, name: str, stock: set[str], prefix: str) -> str:
    """The stock name of one tensor; the base prefix is added where an old file left it out."""
    for pattern, replacement in family.names:
        if re.match(pattern, name):
            name = re.sub(pattern, replacement, name, count=1)
            break
    if name not in stock and f"{prefix}.{name}" in stock:
        return f"{prefix}.{name}"
    return name


def split_fused(
    name: str, tensor: torch.Tensor, heads: int, kv_heads: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """lit-gpt's fused rows, per group [queries of the group, one key, one value], as q, k and v."""
    found = _FUSED.fullmatch(name)
    if not found:
        yield name, tensor
        return
    per_group = heads // kv_heads
    head_dim = tensor.shape[0] // (kv_heads * (per_group + 2))
    grouped = tensor.view(kv_heads, per_group + 2, head_dim, *tensor.shape[1:])
    parts = {"q": grouped[:, :per_group], "k": grouped[:, -2:-1], "v": grouped[:, -1:]}
    for letter, part in parts.items():
        rows = part.reshape(-1, *tensor.shape[1:])
        yield f"model.layers.{found[1]}.self_attn.{letter}_proj.{found[2]}", rows


def _matrix(shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, int]:
    shape = shapes.get(name)
    if shape is None or len(shape) != 2:
        raise WeightsError(
            f"{name} is missing from the file or is no matrix: "
            "a lit-gpt checkpoint needs it, download the file again"
        )
    return shape[0], shape[1]


def _groups(width: int, heads: Any, fused_rows: int, given: Any) -> int:
    """Groups of queries that share a key, read off the fused rows: [heads + 2 groups] * size."""
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1 or width % heads:
        raise ModelError(
            f"config.json says n_head={heads!r}: expected a whole number that divides {width}"
        )
    shared, rest = divmod(fused_rows - width, 2 * (width // heads))
    if rest or shared < 1 or heads % shared:
        raise ModelError(
            f"n_head={heads} does not fit the fused weight of {fused_rows} rows and width {width}: "
            "put the checkpoint's own n_head in config.json"
        )
    if given not in (None, shared):
        raise ModelError(
            f"config.json says n_query_groups={given!r} and the fused weight has {shared}: "
            "leave it out"
        )
    return shared
