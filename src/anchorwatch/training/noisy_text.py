"""Attention on held-out text at fixed shares of masks: what a network does before anything moves.

Each row is masked at every t with the numbers that training noise has, so that arms look at the
same canvases. What is said of a head is a mean over rows; [layer, head] and [layer] arrays first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from anchorwatch.edits.spec import gate
from anchorwatch.evaluation.synthetic import Draw
from anchorwatch.generation.decoding import LeftToRight, LowConfidence
from anchorwatch.generation.run import run
from anchorwatch.models.additions import gate_of
from anchorwatch.models.families import attention_modules, layer_modules
from anchorwatch.models.model import Model
from anchorwatch.models.trained_additions import fit_trained_addition
from anchorwatch.probes import spec as probes
from anchorwatch.trace.trace import Trace
from anchorwatch.training import noise

TIMES = (0.05, 0.2, 0.5, 0.8, 0.95)
PROBES = (
    probes.received(groups=("all", "masked"), dtype="float32"),
    probes.diagonal(rows=True),
    probes.norms(keys=True, residual=True),
    probes.massive(k=1),
    probes.mixing(),
)
BY_LAYER = (
    *("mask_value_ratio", "sink_value_ratio", "sink_mass", "gate", "spread"),
    *("residual_peak", "massive", "state_cosine", "effective_rank"),
)
"""What is also kept for each layer, as a mean over t."""

Looks = dict[str, np.ndarray]


def noisy(model: Model, texts: Sequence[np.ndarray], seed: int = 0) -> dict[str, Any]:
    """Means over texts at each t, and over all t by layer; an autoregressive model has t = 0 only.

    mask_share: attention on masked keys other than oneself, over their share of the keys, of
    visible and of masked queries; 1 for even attention. mask_preference: the same among what goes
    to other tokens of the canvas. null_mass: on added keys, oneself, and masks together.
    """
    times = TIMES if model.family.kind == "mdm" else (0.0,)
    found = {t: [looks for looks in _run_at(model, texts, t, seed) if looks] for t in times}
    by_time = {
        f"{t:g}": {name: _mean([looks[name] for looks in rows]) for name in rows[0]}
        | {"n": len(rows)}
        for t, rows in found.items()
        if rows
    }
    every = [looks for rows in found.values() for looks in rows]
    layers = {name: _by_layer([looks[name] for looks in every]) for name in BY_LAYER}
    return {"t": by_time, "layer": layers}


def _run_at(model: Model, texts: Sequence[np.ndarray], t: float, seed: int) -> Iterator[Looks]:
    for index, ids in enumerate(texts):
        canvas = torch.as_tensor(ids, dtype=torch.int64)
        if model.family.kind == "arm":
            trace = run(model, canvas[:-1].tolist(), LeftToRight(length=1), probes=PROBES)
            yield read_first_step(model, trace) | states_of(model, canvas[:-1], (index, seed))
            continue
        masked = torch.from_numpy(noise.draw_masks(seed, 0, index, t, len(canvas)))
        if not 0 < int(masked.sum()) < len(canvas):
            yield {}
            continue
        canvas = torch.where(masked, model.mask_id, canvas)
        trace = run(model, canvas=canvas, decoding=LowConfidence(steps=1), probes=PROBES)
        yield read_first_step(model, trace) | states_of(model, canvas, (index, seed))


def read_first_step(model: Model, trace: Trace) -> Looks:
    """What the first step of a trace saw: [layer, head] of attention, [layer] of states."""
    there = trace.canvas[0] >= 0
    positions = int(there.sum())
    masked = trace.masked[0][there]
    norms = trace["each_value_norm"].values[0][..., there].mean(axis=1)  # [layer, key]
    residual = trace["residual_norm"].values[0][..., there]
    own = trace["diagonal"].values[0]
    sink, null = _sink_mass(model, trace, own.shape, positions)
    shares = mask_shares(trace) if masked.any() else _absent(own.shape)
    none = np.full(len(norms), np.nan)
    ratio = norms[:, masked].mean(-1) / norms[:, ~masked].mean(-1) if masked.any() else none
    on_masks = shares.pop("mask_mass")
    return shares | {
        "mask_value_ratio": ratio,
        "sink_value_ratio": sink_norms(model, positions) / norms.mean(axis=-1),
        "sink_mass": sink,
        "sink_mass_null": null,
        "diagonal": own,
        "null_mass": np.nan_to_num(sink) + own + np.nan_to_num(on_masks),
        "residual_peak": residual.max(axis=-1) / np.median(residual, axis=-1),
        "massive": np.abs(trace["massive_value"].values[0, :, 0])
        / trace["massive_median"].values[0],
        "state_cosine": trace["state_cosine"].values[0],
        "effective_rank": trace["effective_rank"].values[0] / positions,
    }


def mask_shares(trace: Trace) -> Looks:
    """[layer, head] attention on masked keys other than oneself, of visible and masked queries."""
    masked = trace.masked[0]
    keys, hidden = len(masked), int(masked.sum())
    everyone, theirs = (trace["received"].sel(group=g).values[0] for g in ("all", "masked"))
    own = trace["row_diagonal"].values[0].astype(np.float64)  # [layer, head, query]
    others = (keys * everyone.astype(np.float64) - hidden * theirs) / (keys - hidden)
    seen, own_seen = others[..., masked].sum(-1), own[..., ~masked].mean(-1)
    own_masked = own[..., masked].mean(-1)
    met = theirs[..., masked].sum(-1, dtype=np.float64) - own_masked
    met_of = hidden - 1 if hidden > 1 else np.nan  # one mask has no other
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "mask_share_visible": seen / (hidden / keys),
            "mask_share_masked": met / (met_of / keys),
            "mask_preference_visible": seen / (others.sum(-1) - own_seen) * (keys - 1) / hidden,
            "mask_preference_masked": met
            / (theirs.sum(-1, dtype=np.float64) - own_masked)
            * ((keys - 1) / met_of),
            "mask_mass": (seen * (keys - hidden) + met * hidden) / keys,
        }


def _absent(shape: tuple[int, ...]) -> Looks:
    names = [f"mask_{what}_{who}" for what in ("share", "preference") for who in _QUERIES]
    return {name: np.full(shape, np.nan) for name in (*names, "mask_mass")}


_QUERIES = ("visible", "masked")


def _sink_mass(
    model: Model, trace: Trace, shape: tuple[int, ...], positions: int
) -> tuple[np.ndarray, np.ndarray]:
    """[layer, head] what added keys receive, and what they would of even attention."""
    columns = sum(part.columns for part in model.parts)
    if not columns or "sink_received" not in trace:
        return np.full(shape, np.nan), np.full(shape, np.nan)
    mass = trace["sink_received"].sel(group="all").values[0]
    return mass, np.full(shape, columns / (positions + columns))


def sink_norms(model: Model, positions: int) -> np.ndarray:
    """[layer] mean norm of the values of sink tokens; NaN where there are none."""
    dress = model.active_additions((), [positions])
    pairs = [] if dress is None else list(dress.pairs.values())
    if not pairs:
        return np.full(model.num_layers, np.nan)
    return np.array([float(pair.value.float().norm(dim=-1).mean()) for pair in pairs[0]])


def states_of(model: Model, canvas: torch.Tensor, key: tuple[int, ...]) -> Looks:
    """[layer] mean gate, and how far one other token moves the states of all the others.

    The token is a visible one; `key` names which, and what stands there instead.
    """
    draw = Draw("spread", *key)
    visible = [at for at, token in enumerate(canvas.tolist()) if token != model.specials.mask_id]
    at = draw.pick(visible)
    plain = sorted(set(range(model.vocab_size)) - model.specials.special_ids - {int(canvas[at])})
    other = canvas.clone()
    other[at] = draw.pick(plain)
    clean, gates = _run_pass(model, canvas)
    moved, _ = _run_pass(model, other)
    rest = torch.arange(len(canvas)) != at
    change = (moved - clean).norm(dim=-1) / clean.norm(dim=-1).clamp(min=1e-30)
    return {"spread": change[:, rest].double().mean(dim=-1).numpy(), "gate": gates}


@torch.no_grad()
def _run_pass(model: Model, canvas: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """States [layer, position, width] after each layer, and the mean gate [layer] of a pass."""
    states: list[torch.Tensor] = []
    gates = np.full(model.num_layers, np.nan)
    fits = [
        fit_trained_addition(model.network, part) for part in model.parts if isinstance(part, gate)
    ]

    def keep(_: Any, args: Any, output: Any) -> None:
        held = output[0] if isinstance(output, tuple) else output
        states.append(held[0, -len(canvas) :].float().cpu())

    def read(layer: int) -> Callable[..., None]:
        def look(_: Any, args: Any, given: dict[str, Any]) -> None:
            reads = given["hidden_states"] if "hidden_states" in given else args[0]
            by = gate_of(fits[0], layer, reads[:, -len(canvas) :], model.num_heads)
            gates[layer] = float(by.double().mean())

        return look

    dress = model.active_additions((), [len(canvas)])  # a sink token's own pass is not to be kept
    with _capture_states(model, keep, read if fits else None):
        model.logits(canvas, parts=() if dress is None else dress)
    return torch.stack(states), gates


@contextmanager
def _capture_states(
    model: Model, keep: Callable[..., None], read: Callable[[int], Callable[..., None]] | None
) -> Iterator[None]:
    with ExitStack() as stack:
        for module in layer_modules(model.network):
            stack.callback(module.register_forward_hook(keep).remove)
        for layer, module in enumerate(attention_modules(model.network) if read else ()):
            hook = module.register_forward_pre_hook(read(layer), with_kwargs=True)  # type: ignore[misc]
            stack.callback(hook.remove)
        yield


def _mean(arrays: Sequence[np.ndarray]) -> float:
    """Over everything that exists; NaN where nothing does."""
    whole = np.concatenate([np.ravel(array) for array in arrays])
    there = whole[~np.isnan(whole)]
    return float(there.mean()) if len(there) else float("nan")


def _by_layer(arrays: Sequence[np.ndarray]) -> list[float]:
    return [_mean([array[layer] for array in arrays]) for layer in range(len(arrays[0]))]
