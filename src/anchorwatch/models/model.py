"""One Model with one meaning: `logits[p]` and `logprobs[p]` are about the token AT position p.

Shifts, parts, block visibility and padding positions stay inside; nothing outside this file
needs to know that Dream's row p-1 predicts p, or that an autoregressive model cannot predict row 0.
Shapes: B rows, T positions, V outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from anchorwatch.edits.spec import Addition
from anchorwatch.errors import PromptError, SpecError
from anchorwatch.models.additions import (
    ActiveAddition,
    AdditionCache,
    PassAdditions,
    check_parts,
    fit_addition,
    prepare_additions,
    prepend_registers,
    use_additions_of,
    windows_of,
)
from anchorwatch.models.attention import KeptKeys, use_kept_keys
from anchorwatch.models.device_map import compute_device
from anchorwatch.models.families import Family
from anchorwatch.models.prompt_encoding import Prompt, encode_prompt
from anchorwatch.models.sites import router_modules
from anchorwatch.models.tokens import Specials, tokenizer_digest
from anchorwatch.models.trained_additions import fit_trained_addition
from anchorwatch.models.verify import (
    Check,
    check,
    settings_digest,
    settings_fields,
    settings_of,
    weights_digest,
)


@dataclass(frozen=True, eq=False)
class Model:
    """Weights, tokenizer and family behind one call."""

    source: str
    """What it was loaded from."""
    family: Family
    network: PreTrainedModel = field(repr=False)
    """The stock transformers module that computes."""
    tokenizer: PreTrainedTokenizerBase | None = field(repr=False)
    specials: Specials = field(repr=False)
    block: int | None = None
    """Positions in a block where visibility is block-causal."""
    parts: tuple[Addition, ...] = ()
    """What was added to the network and trained with it: sink tokens, gates; always on."""
    revision: str | None = None
    notes: tuple[str, ...] = ()
    """What was set aside or ignored while loading, in words; part of every manifest."""
    precision: str = "float32, because nothing else was asked"
    """The dtype it computes in, and why."""
    _addition_cache: AdditionCache = field(default_factory=AdditionCache, init=False, repr=False)

    @property
    def mask_id(self) -> int:
        """The mask token's id; an autoregressive model has none and refuses."""
        if self.specials.mask_id is None:
            raise SpecError(
                f"{self.source} is autoregressive and has no mask token: use LeftToRight"
            )
        return self.specials.mask_id

    @property
    def num_layers(self) -> int:
        return int(self.network.config.num_hidden_layers)

    @property
    def num_heads(self) -> int:
        return int(self.network.config.num_attention_heads)

    @property
    def num_kv_heads(self) -> int:
        return int(getattr(self.network.config, "num_key_value_heads", None) or self.num_heads)

    @property
    def num_experts(self) -> int:
        """Experts of a layer that routes its tokens; 0 where none does, or nobody can see it."""
        routers = router_modules(self.network)
        return int(routers[min(routers)].num_experts) if routers else 0

    @property
    def num_experts_per_token(self) -> int:
        """Experts that a token goes through, a shared one not counted."""
        routers = router_modules(self.network)
        return int(routers[min(routers)].top_k) if routers else 0

    @property
    def routing_block(self) -> int | None:
        """Positions whose tokens choose among the same experts (LLaDA2.2); None elsewhere."""
        return getattr(self.network.config, "routing_block", None)

    @property
    def vocab_size(self) -> int:
        """Ids the model can read; it may be able to write fewer (the mask itself, a sink)."""
        return int(self.network.get_input_embeddings().weight.shape[0])

    @property
    def num_positions(self) -> int:
        """The longest canvas the model was made for."""
        # 2**31 where the config states no limit.
        config = self.network.config
        limit = int(getattr(config, "max_position_embeddings", 2**31))
        if config.model_type == "roberta":
            limit -= (
                int(config.pad_token_id) + 1
            )  # the first rows of its position table are not positions
        return limit - self.family.reserved_positions

    @property
    def device(self) -> torch.device:
        """Where it takes a canvas."""
        return compute_device(self.network)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights, whatever files they came from."""
        return weights_digest(self.network)

    def logprobs(
        self,
        canvas: torch.Tensor | Sequence[int],
        attendable: torch.Tensor | None = None,
        *,
        padding: torch.Tensor | int | None = None,
        parts: Sequence[Addition] | PassAdditions = (),
    ) -> torch.Tensor:
        """Log-probabilities of the token at each position, float32, [..., T, V].

        `attendable` says who may be looked at: [..., T] keys, or [..., T, T] queries by keys.
        `padding` counts the slots before each row's first real token: positions start after them.
        `parts` are active besides the model's own. An autoregressive model's first position has
        no predictor: its row is NaN.
        """
        rows = self.logits(canvas, attendable, padding=padding, parts=parts)
        return torch.log_softmax(rows.float(), dim=-1)

    @torch.no_grad()
    def logits(
        self,
        canvas: torch.Tensor | Sequence[int],
        attendable: torch.Tensor | None = None,
        *,
        padding: torch.Tensor | int | None = None,
        parts: Sequence[Addition] | PassAdditions = (),
        last: int | None = None,
        columns: torch.Tensor | None = None,
        block: int | None = None,
    ) -> torch.Tensor:
        """Logits for the token at each position, in the network's dtype, [..., T, V].

        `last` asks for that many positions at the end only, and `columns` [n] for those, in order,
        padding counted: no others are unembedded. `block` is another block size than the model's
        own, where visibility is block-causal.
        """
        # 1. A batch of rows [B, T], and where each row's first real token stands.
        ids = self._ids(canvas)
        rows = ids if ids.ndim == 2 else ids[None]
        starts = _starts_of(rows, padding)
        # 2. Padding hides keys; what is hidden by hand comes on top.
        keys, pairs = _keys_and_pairs(rows, ids.ndim, attendable)
        if starts is not None:
            real = torch.arange(rows.shape[1], device=rows.device) >= starts
            keys = real if keys is None else keys & real
        # 3. Where rows end decides where a sink token at the end stands.
        ends = [rows.shape[1]] * len(rows)
        if starts is not None:
            ends = (rows.shape[1] - starts[:, 0]).tolist()
        additions = (
            parts if isinstance(parts, PassAdditions) else self.active_additions(parts, ends)
        )
        # 4. One pass; a shifted family's row p - 1 is about position p and is moved there.
        if columns is not None:
            source = self._source_columns(columns, starts, len(rows))
            kept = torch.unique(source)
            raw = self._forward(rows, keys, pairs, starts, additions, kept, block or self.block)
            if source.shape[1] != len(kept) or not bool((source == kept).all()):
                index = torch.searchsorted(kept, source)
                raw = raw.gather(1, index[..., None].expand(-1, -1, raw.shape[-1]))
            return raw if ids.ndim == 2 else raw[0]
        raw = self._forward(rows, keys, pairs, starts, additions, last, block or self.block)
        aligned = self._align_rows(raw, starts, rows.shape[1]) if self.family.shift else raw
        aligned = aligned if last is None else aligned[:, -last:]
        return aligned if ids.ndim == 2 else aligned[0]

    @torch.no_grad()
    def extend(
        self,
        ids: torch.Tensor,
        *,
        padding: torch.Tensor | None = None,
        cache: DynamicCache | None = None,
        parts: Sequence[Addition] | PassAdditions = (),
        rows: int | None = None,
    ) -> tuple[torch.Tensor, DynamicCache]:
        """Logits [B, V] for the token after `ids` [B, n], given what `cache` holds.

        For autoregression; `padding` [B] counts the slots before each row's first real token.
        `rows` asks for the tokens after each of the last so many ids, [B, rows, V].
        """
        # 1. The mask covers cached and new slots; positions count from each row's first real one.
        cache = DynamicCache(config=self.network.config) if cache is None else cache
        inputs: dict[str, Any] = {}
        if padding is not None:
            total = cache.get_seq_length() + ids.shape[1]
            places = torch.arange(total, device=ids.device)
            inputs["attention_mask"] = (places >= padding[:, None]).long()
            positions = (places - padding[:, None]).clamp(min=0)
            inputs["position_ids"] = positions[:, -ids.shape[1] :]
        # 2. Additions of this pass; those that stand at the end of a text are refused earlier.
        ends = [cache.get_seq_length() + ids.shape[1]] * len(ids)
        additions = (
            parts if isinstance(parts, PassAdditions) else self.active_additions(parts, ends)
        )
        # 3. One pass over the new tokens, unembedding only the rows that are asked for.
        with use_additions_of(self.network, additions):
            output = self.network(
                ids, past_key_values=cache, use_cache=True, logits_to_keep=rows or 1, **inputs
            )
        logits = output.logits[:, -1] if rows is None else output.logits[:, -rows:]
        return logits, output.past_key_values

    @torch.no_grad()
    def extend_blocks(
        self, ids: torch.Tensor, cache: DynamicCache, block: int, *, keep: bool
    ) -> torch.Tensor:
        """Logits [n, V] for the tokens at `ids` [n], which follow those whose keys `cache` holds.

        For block-causal models without a shift. With `keep` the keys and values of `ids` stay in
        the cache and only the last row is unembedded; else the cache is as it was.
        """
        # 1. Who may look at whom: a row sees its block and all before it, cached or not.
        start, count = cache.get_seq_length(), len(ids)
        places = torch.arange(start + count, device=ids.device)
        visible = places[None, start:, None] // block >= places[None, None, :] // block
        # 2. One pass over the new rows.
        output = self.network(
            ids[None],
            attention_mask=visible[:, None],
            position_ids=places[None, start:],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1 if keep else 0,
        )
        if not keep:
            cache.crop(-count)
        return output.logits[0]

    @torch.no_grad()
    def logits_of_rows(
        self, canvas: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, kept: KeptKeys
    ) -> torch.Tensor:
        """Logits [n, V] for the tokens at `columns` [n] of `canvas` [T], computing only some rows.

        `rows` [Q] are the positions that are computed, in order; what they look at besides is what
        `kept` holds of earlier passes. Where all rows are computed it is an ordinary pass. For
        two-way attention without additions.
        """
        # 1. All rows: the call of a pass without a cache.
        with use_kept_keys(kept):
            if len(rows) == len(canvas):
                return self.logits(canvas, columns=columns)
            # 2. Some rows, at their own positions; who sees whom is a matter of the kept keys.
            source = self._source_columns(columns, None, 1)[0]
            pairs = torch.ones(1, 1, len(rows), len(rows), dtype=torch.bool, device=rows.device)
            output = self.network(
                canvas[rows][None],
                attention_mask=pairs,
                position_ids=rows[None],
                use_cache=False,
                logits_to_keep=torch.searchsorted(rows, source),
            )
        return output.logits[0]

    @torch.no_grad()
    def active_additions(
        self,
        parts: Sequence[Addition],
        ends: Sequence[int],
        rows: Sequence[torch.Tensor | None] | None = None,
    ) -> PassAdditions | None:
        """The model's parts and others, ready for one pass over rows of these lengths.

        `rows` [B] bool say where in the batch each of the others is on; None is everywhere. What a
        sink token is made of is computed here, once for all passes. None where there are no parts.
        """
        if not self.parts and not parts:
            return None
        # Refused before anything is captured: a capture is a pass of the network.
        check_parts(self, parts)
        cache = self._addition_cache.of(self.network)
        # Trained additions come first; those of a run are computed once and kept in the cache.
        on = [ActiveAddition(fit_trained_addition(self.network, part)) for part in self.parts]
        for index, part in enumerate(parts):
            same = part.everywhere
            if same not in cache.fits:
                cache.fits[same] = fit_addition(same, self)
            on.append(ActiveAddition(cache.fits[same], None if rows is None else rows[index]))
        return prepare_additions(self.network, on, ends, cache)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; text and messages get the tokenizer's own special tokens, once."""
        ids = encode_prompt(prompt, self.tokenizer, self.source)
        self._in_vocabulary(ids)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of some ids, special tokens left out; ids in words where there is no tokenizer."""
        if self.tokenizer is None:
            return " ".join(str(i) for i in ids)
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def text_of(self, token_id: int) -> str:
        """Text of one token, as it stands inside a text; <id> where there is no tokenizer."""
        if self.tokenizer is None:
            return f"<{token_id}>"
        once = str(self.tokenizer.decode([token_id]))
        twice = str(self.tokenizer.decode([token_id, token_id]))
        # SentencePiece drops the space before a first word: the second of two words keeps it.
        return twice[len(once) :] if twice.startswith(once) else once

    def check(self) -> list[Check]:
        """Measure the laws every model must obey; raises ModelError where one does not hold."""
        return check(self)

    def describe(self) -> dict[str, Any]:
        """What a manifest says of the model."""
        settings = settings_of(self.network, self.tokenizer, self.specials)
        return {
            "source": self.source,
            "revision": self.revision,
            "family": self.family.name,
            "kind": self.family.kind,
            "network": type(self.network).__name__,
            "visibility": self.family.visibility,
            "block": self.block,
            "windows": self.windows,
            "shift": self.family.shift,
            "mask_id": self.specials.mask_id,
            "end_ids": list(self.specials.end_ids),
            "special_ids": sorted(self.specials.special_ids),
            "parts": [part.as_dict() for part in self.parts],
            "layers": self.num_layers,
            "heads": self.num_heads,
            "kv_heads": self.num_kv_heads,
            "vocab_size": self.vocab_size,
            "weights": self.digest,
            "tokenizer": tokenizer_digest(self.tokenizer),
            "settings": settings_digest(settings),
            "config": settings_fields(settings),
            "dtype": str(self.network.dtype).removeprefix("torch."),
            "device": self.device.type,
            "kernel": self.network.config._attn_implementation,
            "notes": list(self.notes),
        }

    def _in_vocabulary(self, ids: Sequence[int]) -> None:
        size = self.vocab_size  # looked up in the network each time
        if wrong := [i for i in ids if not 0 <= i < size]:
            hint = "; -1 marks an absent position, cut the canvas there" if wrong[0] == -1 else ""
            raise PromptError(
                f"token id {wrong[0]} is outside the vocabulary of {self.source}: "
                f"ids run from 0 to {size - 1}{hint}"
            )

    def _ids(self, canvas: torch.Tensor | Sequence[int]) -> torch.Tensor:
        try:
            given_ids = (
                canvas.copy() if isinstance(canvas, np.ndarray) else canvas
            )  # a trace's is sealed
            ids = torch.as_tensor(given_ids, device=self.device)
        except (TypeError, ValueError, RuntimeError):
            raise PromptError("a canvas is whole token ids, [T] or [rows, T]") from None
        if ids.dtype not in (torch.int64, torch.int32) or ids.ndim not in (1, 2) or not ids.numel():
            raise PromptError(
                f"a canvas is whole token ids, [T] or [rows, T]: got {ids.dtype} "
                f"of shape {list(ids.shape)}"
            )
        self._in_vocabulary([int(ids.min()), int(ids.max())])
        if ids.shape[-1] > self.num_positions:
            raise PromptError(
                f"the canvas has {ids.shape[-1]} positions and {self.source} was made for "
                f"{self.num_positions}: shorten the prompt or the answer"
            )
        return ids.long()

    def _forward(
        self,
        rows: torch.Tensor,
        keys: torch.Tensor | None,
        pairs: torch.Tensor | None,
        starts: torch.Tensor | None,
        additions: PassAdditions | None,
        last: int | torch.Tensor | None,
        block: int | None,
    ) -> torch.Tensor:
        """Raw logits of the network, one row for each canvas position, or enough for the last.

        As a tensor, `last` names the columns whose rows are kept.
        """
        # 1. Positions and visibility of the canvas, then registers in front of both.
        self._check_routing(starts)
        positions = self._positions(rows, starts, additions)
        pairs = self._pairs(rows, keys, pairs, positions, block)
        registers = None if additions is None else additions.registers
        tokens = {"input_ids": rows}
        if registers is not None:
            tokens, keys, pairs, positions = prepend_registers(
                self.network, registers, rows, keys, pairs, positions
            )
        # 2. As the network takes them: pairs as a 4-D mask, keys as a 2-D one.
        inputs: dict[str, Any] = {}
        if positions is not None:
            inputs["position_ids"] = positions
        if pairs is not None:
            inputs["attention_mask"] = pairs[:, None]
        elif keys is not None:
            inputs["attention_mask"] = keys.long()
        # 3. With a shift the row before the first wanted one is needed too; registers stand before.
        selects = "logits_to_keep" in signature(self.network.forward).parameters
        ahead = 0 if registers is None else next(iter(tokens.values())).shape[1] - rows.shape[1]
        if selects and isinstance(last, int):
            inputs["logits_to_keep"] = min(last + self.family.shift, rows.shape[1])
        elif selects and last is not None:
            inputs["logits_to_keep"] = last + ahead
        with use_additions_of(self.network, additions):
            logits = self.network(**tokens, **inputs).logits
        if isinstance(last, torch.Tensor):
            return logits if selects else logits[:, last + ahead]
        return logits[:, -rows.shape[1] :]

    def _check_routing(self, starts: torch.Tensor | None) -> None:
        """Refuse padding that would move the blocks of a canvas against the router's."""
        block = self.routing_block
        if block is not None and starts is not None and bool((starts % block != 0).any()):
            raise SpecError(
                f"{self.source} routes experts by blocks of {block} positions, and padding would "
                "move them: ask one row at a time, or rows of whole blocks"
            )

    def _positions(
        self, rows: torch.Tensor, starts: torch.Tensor | None, additions: PassAdditions | None
    ) -> torch.Tensor | None:
        """Position ids, or None where the network's own (0, 1, 2, ...) are right.

        Parts stand before place 0: where there are some, that is each row's first real token.
        """
        roberta = self.network.config.model_type == "roberta"
        # LLaDA counts padding as positions; Dream and causal models begin at the first token.
        by_canvas = self.family.positions == "canvas" and additions is None
        if not roberta and (starts is None or by_canvas):
            return None
        places = torch.arange(rows.shape[1], device=rows.device).expand(len(rows), -1)
        if starts is not None and not by_canvas:
            places = (places - starts).clamp(min=0)
        return places + int(self.network.config.pad_token_id) + 1 if roberta else places

    @property
    def windows(self) -> list[int | None] | None:
        """How far each layer sees, as transformers counts; None where every layer sees all."""
        return windows_of(self.network)

    def _pairs(
        self,
        rows: torch.Tensor,
        keys: torch.Tensor | None,
        pairs: torch.Tensor | None,
        positions: torch.Tensor | None,
        block: int | None,
    ) -> torch.Tensor | None:
        """Who may look at whom [B, T, T], or None where the network's own visibility is enough."""
        block = block if self.family.visibility == "block-causal" else None
        if pairs is None and block is None:
            return None
        batch, length = rows.shape
        if pairs is None:
            pairs = rows.new_ones(batch, length, length, dtype=torch.bool)
        elif self.windows is not None:
            raise SpecError(
                f"{self.source} has sliding-window layers: attendable may only hide keys, [..., T]"
            )
        if self.network.config.model_type == "esm":
            raise SpecError(
                f"{self.source} scales its embeddings by the keys that all rows see: attendable "
                "may only hide keys, [..., T]"
            )
        places = torch.arange(length, device=rows.device).expand(batch, -1)
        places = places if positions is None else positions
        # A mask of pairs replaces the network's own, so that the order must be in it.
        causal = self.family.visibility == "causal"
        return _visible_pairs(keys, pairs, places, causal=causal, block=block)

    def _source_columns(
        self, columns: torch.Tensor, starts: torch.Tensor | None, batch: int
    ) -> torch.Tensor:
        """[B, n] the columns whose rows are about these positions: with a shift those before."""
        source = columns.expand(batch, -1)
        if not self.family.shift:
            return source
        # A row's first token has no row before it and keeps its own, as in `_align_rows`.
        return source - (source > (0 if starts is None else starts)).long()

    def _align_rows(
        self, raw: torch.Tensor, starts: torch.Tensor | None, length: int
    ) -> torch.Tensor:
        """Row p-1 moved to p. A first token keeps its own row (Dream's way); an ARM's has none.

        `raw` may be the last rows of a canvas of `length`: the first of them is then not aligned.
        """
        # [B, T, V]: row p is what the network said at p-1; row 0 is put right below.
        aligned = torch.cat([raw[:, :1], raw[:, :-1]], dim=1)
        places = torch.arange(length - raw.shape[1], length, device=raw.device)
        first = (places == (0 if starts is None else starts)).expand(raw.shape[:2])
        if self.family.kind == "arm":
            return aligned.masked_fill(first[..., None], float("nan"))
        return aligned if starts is None else torch.where(first[..., None], raw, aligned)


def _starts_of(rows: torch.Tensor, padding: torch.Tensor | int | None) -> torch.Tensor | None:
    """[B, 1] where each row's real tokens begin; None where nothing is padded."""
    if padding is None:
        return None
    starts = torch.as_tensor(padding, device=rows.device).reshape(-1, 1).expand(len(rows), 1)
    if bool((starts < 0).any()) or bool((starts >= rows.shape[1]).any()):
        raise SpecError(
            f"padding={padding} leaves a row without a token: expected 0 to {rows.shape[1] - 1}"
        )
    return starts if bool(starts.any()) else None


def _keys_and_pairs(
    rows: torch.Tensor, dims: int, attendable: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What was asked as keys [B, T] and pairs [B, T, T], either None where nothing is hidden."""
    if attendable is None:
        return None, None
    given_mask = attendable.copy() if isinstance(attendable, np.ndarray) else attendable
    given = torch.as_tensor(given_mask, device=rows.device)
    if given.is_floating_point():
        raise SpecError("attendable is true or false, not numbers to add: say attendable > 0.5")
    given = given.bool() if dims == 2 else given.bool()[None]
    batch, length = rows.shape
    if given.shape == (batch, length):
        return (None, None) if bool(given.all()) else (given, None)
    if given.shape == (batch, length, length):
        return None, given
    raise SpecError(
        f"attendable has shape {list(torch.as_tensor(attendable).shape)}: expected "
        f"[..., {length}] (keys) or [..., {length}, {length}] (queries by keys)"
    )


def _visible_pairs(
    keys: torch.Tensor | None,
    pairs: torch.Tensor,
    places: torch.Tensor,
    *,
    causal: bool,
    block: int | None,
) -> torch.Tensor:
    """Pairs [B, T, T] that neither order nor blocks nor hidden keys forbid.

    `places` [B, T] are positions as blocks count them.
    """
    length = pairs.shape[-1]
    if causal:
        pairs = pairs & pairs.new_ones(length, length).tril()
    if block is not None:
        # A query sees its own block and those before it.
        of = places // block
        pairs = pairs & (of[:, :, None] >= of[:, None, :])
    if keys is not None:
        # A padded query keeps itself: a row with no key at all has no softmax.
        own = torch.eye(length, dtype=torch.bool, device=pairs.device)
        pairs = (pairs & keys[:, None, :]) | own
    return pairs
