"""Rows about models with a sink token or gates: what hiding it does, what it costs, what it is.

A sink token is hidden by a pass that wears the model's other parts only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from anchorwatch.edits.spec import Edit, gate, hide_random, hide_sinks, sink_token
from anchorwatch.errors import SpecError
from anchorwatch.evaluation.effect import effect
from anchorwatch.evaluation.synthetic import Draw
from anchorwatch.evaluation.teacher_forced import divergence
from anchorwatch.generation.decoding import LowConfidence
from anchorwatch.generation.run import run
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.models.additions import (
    ActiveAddition,
    AdditionTensors,
    PassAdditions,
    gate_of,
    has_rotary,
    prepare_additions,
    use_additions_of,
)
from anchorwatch.models.model import Model
from anchorwatch.models.sites import attention_modules, layer_modules
from anchorwatch.models.trained_additions import fit_trained_addition
from anchorwatch.probes import spec as probes
from anchorwatch.studies import prompts
from anchorwatch.studies.evidence import experiment
from anchorwatch.studies.protocols import DEFAULT_PROTOCOL, Protocol
from anchorwatch.trace.trace import Trace
from anchorwatch.training import noise

MASK_RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of masks, by turns."""

Record = dict[str, Any]


def noisy_canvas(model: Model, unit: int, protocol: Protocol = DEFAULT_PROTOCOL) -> torch.Tensor:
    """[T] a prompt with masks in it: which, and how many, is a function of the unit."""
    ids = torch.tensor(model.encode(protocol.prompt_of("asked", unit).text), device=model.device)
    masked = noise.draw_masks(prompts.SEED, 0, unit, MASK_RATIOS[unit % len(MASK_RATIOS)], len(ids))
    masked[-1] = True  # a run needs one
    return torch.where(torch.from_numpy(masked).to(ids.device), model.mask_id, ids)


def without_sink(model: Model, length: int) -> PassAdditions:
    """The model's parts but for its sink tokens, for a pass over so many positions."""
    rest = [part for part in model.parts if not isinstance(part, sink_token)]
    return prepare_additions(
        model.network,
        [ActiveAddition(fit_trained_addition(model.network, part)) for part in rest],
        [length],
        None,
    )


def sink_of(model: Model) -> AdditionTensors:
    """The sink token of a model, with its embedding."""
    for part in model.parts:
        if isinstance(part, sink_token):
            return fit_trained_addition(model.network, part)
    raise SpecError(f"{model.source} has no sink token: name one that has, such as lab/toy-sink")


@dataclass
class _KeyRecorder(PassAdditions):
    """A pass that keeps the keys and values of its first tokens, [G, n, D] of each layer."""

    first: int = 0
    kept: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def attend_alone(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor | None:
        self.kept.append((key[0, :, : self.first].clone(), value[0, :, : self.first].clone()))
        return None


@torch.no_grad()
def run_in_sequence(
    model: Model, canvas: torch.Tensor, *, sees_all: bool = False
) -> tuple[Any, Any]:
    """The published form: sink tokens in the sequence, and a mask that shows them only themselves.

    Logits [T, V], and (key, value) of each layer. `sees_all` leaves the mask out.
    """
    fit = sink_of(model)
    part, embedding, network = fit.part, fit.embedding, model.network
    assert isinstance(part, sink_token) and embedding is not None
    if part.value != "own" or not part.rotary or not has_rotary(network):
        raise SpecError(
            f"{model.source}: a sink token in the sequence has a rotary position and a value of "
            "its own: name a model whose sink token has both"
        )
    # 1. positions and embeddings of n sink tokens and T tokens
    n, length = len(embedding), len(canvas)
    first = -n if part.position == "front" else length
    positions = torch.cat([torch.arange(first, first + n), torch.arange(length)]).to(canvas.device)
    tokens = torch.cat([embedding, network.get_input_embeddings()(canvas)])[None]
    # 2. [n + T, n + T] what each row sees: all, but a sink token only itself
    seen = torch.ones(n + length, n + length, dtype=torch.bool, device=canvas.device)
    if not sees_all:
        seen[:n] = torch.eye(n, n + length, dtype=torch.bool, device=canvas.device)
    # 3. a pass without the model's own sink token, which keeps keys and values of the first n
    rest = without_sink(model, length)
    additions = _KeyRecorder(rest.on, rest.groups, first=n)
    with use_additions_of(network, additions):
        out = network(
            inputs_embeds=tokens, attention_mask=seen[None, None], position_ids=positions[None]
        )
    raw = out.logits[0, n:]
    return torch.cat([raw[:1], raw[:-1]]) if model.family.shift else raw, additions.kept


@experiment("constants", reads=("asked",))
def constants(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> list[Record]:
    """How far the published form is from constant keys and values, relative to their size."""
    canvas = noisy_canvas(model, unit, protocol)
    additions = model.active_additions((), [len(canvas)])
    assert additions is not None
    (pairs,) = additions.pairs.values()
    logits, kept = run_in_sequence(model, canvas)
    _, open_kept = run_in_sequence(model, canvas, sees_all=True)
    own = [(pair.key[0], pair.value[0]) for pair in pairs]
    row = {
        name: max(_relative_distance(a[index], b[index]) for a, b in zip(kept, own, strict=True))
        for index, name in enumerate(("key", "value"))
    }
    row["logits"] = _relative_distance(logits, model.logits(canvas, parts=additions))
    row["value_if_it_sees_all"] = max(
        _relative_distance(a[1], b[1]) for a, b in zip(open_kept, own, strict=True)
    )
    return [row]


def _relative_distance(first: torch.Tensor, other: torch.Tensor) -> float:
    """Norm of the difference over the norm of the second."""
    a, b = first.double(), other.double()
    return float((a - b).norm() / b.norm())


@experiment("operations", reads=("asked",))
def operations(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> list[Record]:
    """Multiplications and additions of a pass: with the sink token, without, and as published.

    What a sink token is made of is a constant of the weights, and counts in no pass.
    """
    canvas = noisy_canvas(model, unit, protocol)
    additions, bare = model.active_additions((), [len(canvas)]), without_sink(model, len(canvas))
    assert additions is not None
    counts = {
        "with": _count_flops(lambda: model.logits(canvas, parts=additions)),
        "without": _count_flops(lambda: model.logits(canvas, parts=bare)),
        "published": _count_flops(lambda: run_in_sequence(model, canvas)),
    }
    return [{"positions": len(canvas)} | counts]


def _count_flops(call: Callable[[], Any]) -> int:
    """All products, those inside the fused kernel of a CPU too, which torch does not count."""
    fused = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
    with FlopCounterMode(display=False, custom_mapping=fused) as counter:
        call()
    return int(counter.get_total_flops())


def _attention_flops(
    query: Any,
    key: Any,
    value: Any,
    *_: Any,
    attn_mask: Any = None,
    scale: Any = None,
    out_shape: Any = None,
) -> int:
    """Of shapes [B, H, positions, D]: a product and a sum for each channel, of keys and values.

    The rest of the names is what torch's counter hands over, too.
    """
    pairs = query[0] * query[1] * query[2] * key[2]
    return int(2 * pairs * (key[3] + value[3]))


@experiment("knock_outs", reads=("asked",))
def knock_outs(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> list[Record]:
    """KL in nats per masked position, on the clean frames, of hiding one key in every head.

    The sink token, the canvas key that receives most, or another one drawn by chance.
    """
    shown = protocol.prompt_of("asked", unit)
    how = LowConfidence(int(options["length"]), int(options["steps"]))
    edit = hide_sinks(1, detect="same_shadow")  # at the first step too, as the sink token is
    effects = effect(model, [shown.text], how, edit, seed=unit, traces=True)
    kl = effects.table.set_index("outcome").loc["kl"]
    assert effects.traces is not None
    clean = effects.traces["clean"][0]
    return [
        {
            "greatest": float(kl["edited"]),
            "random": float(kl["control"]),
            "sink": _kl_without_sink(model, clean),
        }
    ]


def _kl_without_sink(model: Model, clean: Trace) -> float:
    total, rows = 0.0, 0
    for step in range(clean.num_steps):
        canvas = torch.from_numpy(clean.canvas[step].astype(np.int64)).to(model.device)
        masked = canvas == model.mask_id
        logits = model.logits(canvas)[masked]
        other = model.logits(canvas, parts=without_sink(model, len(canvas)))[masked]
        total, rows = total + divergence(logits, other)[1], rows + len(logits)
    return total / rows


@experiment("openness", reads=("asked",))
def openness(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> list[Record]:
    """How far each head is open at each position: a row for each layer and head, a list in it.

    Of a sink token the attention that does not go to it, of a gate its mean over channels.
    """
    canvas = noisy_canvas(model, unit, protocol)
    gated = any(isinstance(part, gate) for part in model.parts)
    opened = _gates(model, canvas) if gated else _open_to_canvas(model, canvas)
    return [
        {"layer": layer, "head": head, "open": [round(float(v), 7) for v in opened[layer, head]]}
        for layer in range(model.num_layers)
        for head in range(model.num_heads)
    ]


def _open_to_canvas(model: Model, canvas: torch.Tensor) -> np.ndarray:
    """[layer, head, position] what rows give to the canvas: all but what goes to added keys."""
    sink_of(model)
    trace = run(model, canvas=canvas, decoding=LowConfidence(steps=1), probes=(probes.pattern(),))
    rows = trace["pattern"].values.sum(axis=-1, dtype=np.float64)  # [pick, query]
    return rows.reshape(model.num_layers, model.num_heads, -1)


@torch.no_grad()
def _gates(model: Model, canvas: torch.Tensor) -> np.ndarray:
    """[layer, head, position] of a pass."""
    part = next(part for part in model.parts if isinstance(part, gate))
    fit, length = fit_trained_addition(model.network, part), len(canvas)
    openness = np.full((model.num_layers, model.num_heads, length), np.nan)

    def hook_of(layer: int) -> Any:
        def look(_: Any, args: Any, given: dict[str, Any]) -> None:
            reads = given["hidden_states"] if "hidden_states" in given else args[0]
            by = gate_of(fit, layer, reads[:, -length:], model.num_heads)
            openness[layer] = by[0].double().mean(dim=-1).T.cpu().numpy()

        return look

    additions = model.active_additions((), [length])  # a sink token's own pass is not to be kept
    assert additions is not None
    with ExitStack() as stack:
        for layer, module in enumerate(attention_modules(model.network)):
            hook = module.register_forward_pre_hook(hook_of(layer), with_kwargs=True)
            stack.callback(hook.remove)
        model.logits(canvas, parts=additions)
    return openness


MIXING_PROBES = (probes.received(groups=("all",), dtype="float32"), probes.mixing())


@experiment("mixing", reads=("asked",))
def mixing(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> list[Record]:
    """How far states mix, as the model is, with its sinks hidden, and with other keys hidden.

    Sinks are those of the unedited pass, at most `k` in a head; as many other keys are hidden in
    the third row. `spread` is the mean relative change of all other states when one token that is
    no sink is another; the same keys are hidden in both passes. `rank` is the effective rank of
    states over positions, `cosine` their mean cosine; all three are means over layers.
    """
    # 1. the unedited pass, and which keys are sinks in any head
    canvas = noisy_canvas(model, unit, protocol)
    one_step = LowConfidence(steps=1)
    clean = run(model, canvas=canvas, decoding=one_step, probes=MIXING_PROBES, seed=unit)
    shares = clean["received"].sel(group="all").values[0]  # [layer, head, key]
    sinks = rulli().labels(shares)
    # 2. the same canvas with another token at a visible position that is no sink
    position = _choose_position(model, canvas, sinks, unit)
    other = canvas.clone()
    plain = sorted(
        set(range(model.vocab_size)) - model.specials.special_ids - {int(canvas[position])}
    )
    other[position] = Draw("mixing", unit, "token").pick(plain)
    # 3. both passes under each edit
    k = int(options["k"])
    edits: dict[str, tuple[Edit, ...]] = {
        "none": (),
        "sinks": (hide_sinks(k, rule=rulli(), detect="oracle", unedited=clean),),
        "random": (hide_random(k, rule=rulli(), detect="oracle", unedited=clean, seed=unit),),
    }
    rows = []
    for name, edit in edits.items():
        (before, trace), (after, _) = (_states(model, ids, edit, unit) for ids in (canvas, other))
        rest = torch.arange(len(canvas)) != position
        change = (after - before).norm(dim=-1) / before.norm(dim=-1).clamp(min=1e-30)
        rows.append(
            {
                "edit": name,
                "spread": float(change[:, rest].double().mean()),
                "rank": float(trace["effective_rank"].values[0].mean()) / len(canvas),
                "cosine": float(trace["state_cosine"].values[0].mean()),
                "sinks": float(np.minimum(sinks.sum(axis=-1), k).mean()),
            }
        )
    return rows


def _choose_position(model: Model, canvas: torch.Tensor, sinks: np.ndarray, unit: int) -> int:
    """A visible position that is a sink in as few heads as there are: in none, if there is one."""
    heads = sinks.reshape(-1, sinks.shape[-1]).sum(axis=0)
    visible = np.flatnonzero((canvas != model.mask_id).cpu().numpy())
    fewest = heads[visible].min()
    return int(Draw("mixing", unit).pick([int(p) for p in visible if heads[p] == fewest]))


def _states(
    model: Model, canvas: torch.Tensor, edits: tuple[Edit, ...], unit: int
) -> tuple[torch.Tensor, Trace]:
    """[layer, position, width] states after each layer of an edited pass, and its trace."""
    states: list[torch.Tensor] = []

    def keep(_: Any, args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        states.append(hidden[0, -len(canvas) :].float().cpu())

    with ExitStack() as stack:
        for module in layer_modules(model.network):
            stack.callback(module.register_forward_hook(keep).remove)
        trace = run(
            model,
            canvas=canvas,
            decoding=LowConfidence(steps=1),
            probes=MIXING_PROBES,
            edits=edits,
            seed=unit,
        )
    return torch.stack(states[-model.num_layers :]), trace


@experiment("in_context", reads=("other own passage",))
def in_context(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> list[Record]:
    """Log-probability per token of an answer, all of it masked: a row with and without passage.

    `worn` is of the model as it is, `hidden` without its sink token.
    """
    item = protocol.item_of("other own passage", unit)
    assert model.tokenizer is not None
    answer = model.tokenizer(" " + item.answers[0], add_special_tokens=False)["input_ids"]
    rows = []
    for context, shown in (("gold", item), ("closed", item.keep())):
        prompt = model.encode(shown.prompt())
        canvas = torch.tensor([*prompt, *[model.mask_id] * len(answer)], device=model.device)
        variants = {"worn": (), "hidden": without_sink(model, len(canvas))}
        row: Record = {"context": context}
        for name, parts in variants.items():
            each = model.logprobs(canvas, parts=parts)[len(prompt) :]  # type: ignore[arg-type]
            own = each[torch.arange(len(answer)), torch.tensor(answer)]
            row[name] = float(own.double().mean())
        rows.append(row)
    return rows
