"""`fit`: from a spec to a trained network in a folder, in one process or in many.

Which rows an update reads, their noise, the learning rate and every first value are functions of
the spec and an index, so that a run has no state but weights, moments and a counter: killed and
started again it resumes as if nothing had happened, bit for bit on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import GradientAccumulationPlugin
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from transformers import PreTrainedTokenizerBase

from anchorwatch.errors import SpecError, TrainingError
from anchorwatch.models.tokens import tokenizer_digest
from anchorwatch.trace import machine_limits as limits
from anchorwatch.trace.progress_bar import Progress
from anchorwatch.training import checkpoints
from anchorwatch.training.corpora import Corpus as Mixed
from anchorwatch.training.corpora import CorpusLike, build_batch_builder, build_loader
from anchorwatch.training.corpora import read_corpus as read_corpus
from anchorwatch.training.log import (
    Line,
    Log,
    Tracker,
    check_tracker,
    explain_write_errors,
    repair_log,
)
from anchorwatch.training.networks import StartingPoint, build_start
from anchorwatch.training.objective import NoisyBatch, Scorer, token_nats
from anchorwatch.training.optimizer import build_adamw, check_rates, learning_rate
from anchorwatch.training.plots import loss_curve
from anchorwatch.training.spec import Spec, from_dict, read

_LAYER_BYTES = 20_000
"""At least what the modules and tensors of a layer take beside their numbers."""
_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


@dataclass(frozen=True)
class Fitted:
    """A finished training run."""

    folder: Path
    """The run's folder."""
    model: Path
    """The folder inside it that `aw.load` opens."""
    updates: int
    tokens: int
    loss: float
    """Mean over the last tenth of the updates, nats per scored token."""
    resumed_at: int
    """Updates that were done when this call began."""
    processes: int
    """How many really took part: a launcher may start fewer than it was asked for."""
    lines: tuple[Line, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """For machines, without the log."""
        fields = {name: value for name, value in vars(self).items() if name != "lines"}
        return fields | {"folder": str(self.folder), "model": str(self.model)}


def fit(
    spec: Spec | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    corpus: CorpusLike | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Fitted:
    """Train what `spec` says into the folder `out`; an unfinished run there is resumed.

    Args:
        spec: a `Spec`, its fields, or the path of a SPEC.toml.
        out: the run's folder; unless said, the spec's own name, here.
        corpus: what to read instead of `spec.corpus`.
        tokenizer: the tokenizer of that corpus, for a network from scratch.
    """
    run_spec = _read_spec(spec)
    check_tracker(run_spec.log.tracker)
    accelerator = Accelerator(  # the environment may not divide gradients: passes are our own
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1)
    )
    passes = run_spec.accumulation * accelerator.num_processes
    if run_spec.batch % passes:
        fits = passes * (run_spec.batch // passes + 1)
        raise SpecError(
            f"a batch of {run_spec.batch} rows cannot be shared by {accelerator.num_processes} "
            f"processes in {run_spec.accumulation} passes: say batch = {fits}"
        )
    _refuse_too_large(run_spec, accelerator)
    start, texts = _open_start(run_spec, corpus, tokenizer)
    if start.parts and accelerator.distributed_type == DistributedType.FSDP:
        # A sink token passes through the network before its shards are together.
        raise SpecError("FSDP cannot train parts: use DDP, or leave variant out")
    _check_corpus(texts, run_spec, start)
    record = {
        "spec": run_spec.deciding_fields(),
        "corpus": {"digest": texts.digest, **texts.describe()},
        "start": start.describe(),
    }
    folder = Path(out or run_spec.name).expanduser()
    checkpoints.refuse_foreign(folder, record)
    accelerator.wait_for_everyone()  # none may look while the first one makes the folder
    main = accelerator.is_main_process
    with checkpoints.claim_folder(folder, record) if main else nullcontext():
        accelerator.wait_for_everyone()
        return Trainer(run_spec, folder, start, texts, accelerator).run()


def _refuse_too_large(spec: Spec, accelerator: Accelerator) -> None:
    """Refuse a network or a batch that does not fit, and updates without end, before any work."""
    passes = spec.updates * spec.accumulation
    limits.refuse_passes(passes, f"say updates = {limits.at_most(spec.updates, passes=passes)}")
    here = accelerator.device.type != "cuda"
    layers, width, bytes_held = 1, 1, 0
    if spec.model.source is None:
        layers, width, _ = spec.model.numbers
        # First weights are made in memory; gradients and two moments stay where they are trained.
        copies = 4 if here else 1
        bytes_held = layers * (spec.model.layer_parameters * 4 * copies + _LAYER_BYTES)
        fewer = limits.at_most(layers, held=bytes_held)
        way = f"say model.layers = {fewer} at most, or less model.width"
        limits.refuse_bytes(bytes_held, "the network", way)
    rows = spec.batch // (spec.accumulation * accelerator.num_processes)
    kept = rows * spec.length * max(2 * width * layers if here else 0, 8)
    fewer = limits.at_most(rows, held=kept) * spec.accumulation * accelerator.num_processes
    way = f"say batch = {fewer} at most, or raise accumulation"
    limits.refuse_bytes(kept, "the rows of one pass", way)


class Trainer:
    """One run on its way."""

    def __init__(
        self,
        spec: Spec,
        out: Path,
        start: StartingPoint,
        corpus: CorpusLike,
        accelerator: Accelerator,
    ) -> None:
        self.spec, self.out, self.start, self.accelerator = spec, out, start, accelerator
        self.main = accelerator.is_main_process
        # 1. The newest checkpoint, if there is one: weights now, moments after `prepare`.
        self.run_digest, state = checkpoints.read_run_digest(out), checkpoints.read_newest(out)
        if state is not None:
            check_rates(state.lines, spec)
            restore_tensors(start, state.tensors, adapted=state.adapted)
        self.resumed_at = self.update = 0 if state is None else state.update
        # Asked before `prepare`, where processes meet: the first one may soon publish the model.
        self.finished = self.update == spec.updates and (out / checkpoints.MODEL).exists()
        self.lines = [] if state is None else list(state.lines)
        self.tokens = self.lines[-1].tokens if self.lines else 0
        self.tokens_before = self.lines[-2].tokens if len(self.lines) > 1 else 0
        # 2. Network, loss and optimiser, wrapped for the processes that take part.
        scorer = Scorer(start.network, bf16=spec.precision == "bf16")
        if spec.compile:
            start.network.base_model.compile(dynamic=True)
        optimizer = build_adamw(scorer, start.parts, spec.optimizer, accelerator.device)
        self.scorer, self.optimizer = accelerator.prepare(scorer, optimizer)
        if state is not None:
            self._restore_moments(state.optimizer)
        # 3. Batches from the first update that is not done; clocks of checkpoints and log.
        self.builder = build_batch_builder(spec, start)
        self.loader = build_loader(spec, corpus, self.builder, accelerator, self.update)
        self.saved_at, self.saved_when = self.update, time.monotonic()
        self.pending: list[tuple[torch.Tensor, torch.Tensor, float, int]] = []
        self.flushed_when = time.monotonic()

    def run(self) -> Fitted:
        """All updates that are left, and the finished model."""
        done = self._train_rest()
        if self.main:
            asked = self.spec.checkpoints
            checkpoints.warn_of_missing_snapshots(self.out, asked, self.lines)
        return done

    def _train_rest(self) -> Fitted:
        spec = self.spec
        if self.finished:
            if self.main:
                repair_log(self.out, self.lines)
            self._draw_loss_curve()
            return self._summarize()
        if self.main:
            checkpoints.remove_model(self.out)  # of a shorter run, which is being made longer
        self.log = self._open_log()
        total = spec.updates if self.main else None
        self._save_snapshot()  # of the start, or one that a kill came before
        with Progress("training", total, done=self.update) as bar:
            for batches in self.loader:
                due = self._train_update(batches)
                ended = self.update == spec.updates
                if due or ended or self.update % spec.log.every == 0:
                    self._flush()
                if due or ended:
                    self._save_checkpoint()
                self._save_snapshot()
                bar.advance(f"loss {self.lines[-1].loss:.3f}" if self.lines else "")
        return self._finish()

    def _train_update(self, batches: Sequence[NoisyBatch]) -> bool:
        """One update; whether a checkpoint is due, as the first process says."""
        spec, accelerator, device = self.spec, self.accelerator, self.accelerator.device
        # 1. Divisor and tokens over all processes; the first process decides on a checkpoint.
        counted = (sum(rows.divisor for rows in batches), sum(rows.tokens for rows in batches))
        shared = torch.tensor(
            [*counted, self.main and self._is_checkpoint_due()], dtype=torch.float64
        )
        divisor, tokens, due = accelerator.reduce(shared.to(device), "sum").tolist()
        # 2. Gradients of the passes; only the last one synchronises.
        loss = torch.zeros((), device=device)
        scale = accelerator.num_processes / max(divisor, 1.0)  # DDP and FSDP take the mean
        for number, rows in enumerate(batches):
            last = number == len(batches) - 1
            with nullcontext() if last else accelerator.no_sync(self.scorer):
                rows = rows.to(device)
                part = (token_nats(self.scorer, rows) * rows.weights).sum() * scale
                accelerator.backward(part)
                loss += part.detach()
        # 3. Clip, set the rate of this very update, step.
        norm = accelerator.clip_grad_norm_(self.scorer.parameters(), spec.optimizer.clip)
        rate = learning_rate(spec.optimizer, self.update, spec.updates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.update += 1
        self.tokens_before, self.tokens = self.tokens, self.tokens + int(tokens)
        self.pending.append((loss, torch.as_tensor(norm), rate, self.tokens))
        return bool(due)

    def _is_checkpoint_due(self) -> bool:
        """Whether the update that begins is the last before a checkpoint."""
        every, minutes = self.spec.checkpoints.updates, self.spec.checkpoints.minutes
        late = minutes is not None and time.monotonic() - self.saved_when > 60 * minutes
        return late or (self.update + 1) % every == 0

    def _flush(self) -> None:
        """Fetch what the last updates gave, which waits for the device once, and log it."""
        if not self.pending:
            return
        losses = torch.stack([loss for loss, *_ in self.pending])
        losses = self.accelerator.reduce(losses, "mean").tolist()
        norms = torch.stack([norm for _, norm, *_ in self.pending]).tolist()
        before = self.lines[-1].tokens if self.lines else 0
        now = time.monotonic()
        speed = (self.tokens - before) / max(now - self.flushed_when, 1e-9)
        first = self.update - len(self.pending) + 1
        lines = [
            Line(first + i, losses[i], rate, norms[i], speed, tokens)
            for i, (_, _, rate, tokens) in enumerate(self.pending)
        ]
        self.pending, self.flushed_when = [], now
        self._refuse_nan(lines)
        self.lines += lines
        if self.log is not None:
            self.log.add(lines)

    def _refuse_nan(self, lines: Sequence[Line]) -> None:
        for line in lines:
            if not (abs(line.loss) < float("inf") and abs(line.grad_norm) < float("inf")):
                raise TrainingError(
                    f"update {line.update} has loss {line.loss} and gradient norm "
                    f"{line.grad_norm}: the checkpoint of update {self.saved_at} is kept; "
                    "lower optimizer.lr"
                )

    def _save_checkpoint(self) -> None:
        """A checkpoint; every process helps to gather it, the first one writes."""
        tensors = self._gather_tensors()
        raw = getattr(self.optimizer, "optimizer", self.optimizer)
        moments = get_optimizer_state_dict(self.scorer, raw, options=_FULL)
        if self.main:
            adapted = self.spec.lora is not None
            kept = self._select_trained(tensors) if adapted else tensors
            state = checkpoints.TrainingState(
                self.update, kept, adapted, moments, self.lines, self.run_digest
            )
            keep = self.spec.checkpoints.keep
            checkpoints.save_checkpoint(
                self.out, state, keep, lambda to: checkpoints.write_model(to, self.start, tensors)
            )
        self.saved_at, self.saved_when = self.update, time.monotonic()

    def _save_snapshot(self) -> None:
        """A snapshot after this update, where one is asked for: a delta with LoRA."""
        settings = self.spec.checkpoints
        crossed = any(self.tokens_before < count <= self.tokens for count in settings.at_tokens)
        if self.update not in settings.at and not crossed:
            return
        tensors, source = self._gather_tensors(), self.spec.model.source
        if not self.main:
            return
        if self.spec.lora is None or source is None:
            write = partial(checkpoints.write_model, start=self.start, tensors=tensors)
        else:
            trained = self._select_trained(tensors)
            write = partial(
                checkpoints.write_delta,
                start=self.start,
                tensors=trained,
                source=source,
                dtype=torch.float16,
            )
        checkpoints.save_snapshot(self.out, self.update, write)

    def _select_trained(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Those that are not frozen."""
        named = self.start.network.named_parameters()
        free = {name for name, parameter in named if parameter.requires_grad}
        return {name: tensor for name, tensor in tensors.items() if name in free}

    def _gather_tensors(self) -> dict[str, torch.Tensor]:
        """The network's tensors by its own names, on the CPU, tied copies left out."""
        state = self.accelerator.get_state_dict(self.scorer)
        tied = set(self.start.network.all_tied_weights_keys)
        named = {name.removeprefix("network."): value for name, value in state.items()}
        return {
            name: value.detach().cpu().contiguous()
            for name, value in named.items()
            if name not in tied
        }

    def _restore_moments(self, state: dict[str, Any]) -> None:
        raw = getattr(self.optimizer, "optimizer", self.optimizer)
        for group in state["param_groups"]:
            group["betas"] = tuple(group["betas"])  # JSON has lists
        set_optimizer_state_dict(self.scorer, raw, optim_state_dict=state, options=_FULL)

    def _open_log(self) -> Log | None:
        if not self.main:
            return None
        name = self.spec.log.tracker
        tracker = None if name is None else Tracker(name, self.spec.name, self.spec.as_dict())
        return Log(self.out, self.lines[:], tracker)

    def _finish(self) -> Fitted:
        tensors = self._gather_tensors()
        if self.main:
            checkpoints.save_model(
                self.out, lambda to: checkpoints.write_model(to, self.start, tensors)
            )
        self._draw_loss_curve()
        if self.log is not None:
            self.log.close()
        self.accelerator.wait_for_everyone()
        return self._summarize()

    def _draw_loss_curve(self) -> None:
        """The loss curve, unless it is there: a run may be killed between its model and this."""
        path = self.out / "loss.pdf"
        if self.main and not path.exists():
            with explain_write_errors("the loss curve", path, self.out):
                loss_curve(self.lines, self.spec).save(path)

    def _summarize(self) -> Fitted:
        last = self.lines[-max(1, len(self.lines) // 10) :]
        return Fitted(
            folder=self.out,
            model=self.out / checkpoints.MODEL,
            updates=self.update,
            tokens=self.tokens,
            loss=sum(line.loss for line in last) / len(last),
            resumed_at=self.resumed_at,
            processes=self.accelerator.num_processes,
            lines=tuple(self.lines),
        )


def restore_tensors(
    start: StartingPoint, tensors: Mapping[str, torch.Tensor], *, adapted: bool = False
) -> None:
    """Put a checkpoint's tensors into the network they came from."""
    try:
        lost, unknown = start.network.load_state_dict(tensors, strict=False)
    except RuntimeError as error:  # another shape
        raise TrainingError(
            f"the checkpoint does not fit the network ({str(error).splitlines()[-1].strip()}): "
            "it is another run's, choose another folder"
        ) from None
    left = set(start.network.all_tied_weights_keys)
    if adapted:  # adapters' checkpoints hold what is not frozen
        named = start.network.named_parameters()
        left |= {name for name, parameter in named if not parameter.requires_grad}
    if unknown or set(lost) - left:
        raise TrainingError(f"the checkpoint does not fit the network: {(*unknown, *lost)[0]}")
    start.network.tie_weights()


def _read_spec(spec: Spec | Mapping[str, Any] | str | Path) -> Spec:
    if isinstance(spec, Spec):
        return spec
    return read(spec) if isinstance(spec, str | Path) else from_dict(spec)


def _open_start(
    spec: Spec, corpus: CorpusLike | None, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[StartingPoint, CorpusLike]:
    """Network and corpus, which have one tokenizer: the checkpoint's, or else the corpus's own."""
    given = tokenizer if tokenizer is not None else getattr(corpus, "tokenizer", None)
    if spec.model.source is not None:
        start = build_start(spec)
        if given is not None and tokenizer_digest(given) != tokenizer_digest(start.tokenizer):
            raise SpecError(
                f"the corpus was made with another tokenizer than {spec.model.source}'s: "
                "leave corpus and tokenizer out, and the checkpoint's own is used"
            )
        return start, corpus or read_corpus(spec.corpus, spec.length, spec.seed, start.tokenizer)
    if corpus is None:
        corpus = read_corpus(spec.corpus, spec.length, spec.seed)
        given = corpus.tokenizer
    return build_start(spec, given), corpus


def _check_corpus(corpus: CorpusLike, spec: Spec, start: StartingPoint) -> None:
    """Make some rows before anything is written: a corpus that cannot shows here.

    They are the first update's, the last one, and the first of each kind of a mix.
    """
    rows, index = spec.updates * spec.batch, 0
    try:
        texts = [corpus[index := row] for row in range(spec.batch)]
        corpus[index := rows - 1]
    except IndexError:
        reason = f"there is no row {index}, and the run reads {rows}" if index else "it is empty"
        raise SpecError(
            f"the corpus ends ({reason}): give it at least one text, and begin again after the "
            "last, corpus[i % count]"
        ) from None
    builder = build_batch_builder(spec, start)
    builder(texts, 0, range(spec.batch))
    for text in corpus.first_of_each(rows) if isinstance(corpus, Mixed) else ():
        builder([text], 0, [0])
