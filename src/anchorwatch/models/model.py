"""One Model with one meaning: `logits[p]` and `logprobs[p]` are about the token AT position p.

Shifts, sink tokens, block visibility and padding positions stay inside; nothing outside this file
needs to know that Dream's row p-1 predicts p, or that an autoregressive model cannot predict row 0.
Shapes: B rows, T positions, V outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from anchorwatch.errors import PromptError, SpecError
from anchorwatch.models.check import Check, check
from anchorwatch.models.families import Family
from anchorwatch.models.proof import weights_digest
from anchorwatch.models.tokens import Specials, tokenizer_digest

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or chat messages."""


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
    sink_id: int | None = None
    """Id of a trained sink token that stands before the canvas and looks only at itself."""
    gated: bool = False
    """Whether a trained sigmoid gate multiplies each attention output."""
    revision: str | None = None
    notes: tuple[str, ...] = ()
    """What was set aside or ignored while loading, in words; part of every manifest."""

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
    def vocab_size(self) -> int:
        """Ids the model can read; it may be able to write fewer (the mask itself, a sink)."""
        return int(self.network.get_input_embeddings().weight.shape[0])

    @property
    def num_positions(self) -> int:
        """The longest canvas the model was made for."""
        config = self.network.config
        limit = int(getattr(config, "max_position_embeddings", 2**31))
        if config.model_type == "roberta":
            limit -= (
                int(config.pad_token_id) + 1
            )  # the first rows of its position table are not positions
        return limit - (self.family.name == "smdm")

    @property
    def device(self) -> torch.device:
        return self.network.device

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights, whatever files they came from."""
        return weights_digest(self.network)

    def logprobs(
        self, canvas: torch.Tensor | Sequence[int], attendable: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log-probabilities of the token at each position, float32, [..., T, V].

        `attendable` says who may be looked at: [..., T] keys, or [..., T, T] queries by keys.
        The first position of an autoregressive model has no predictor: its row is NaN.
        """
        return torch.log_softmax(self.logits(canvas, attendable).float(), dim=-1)

    @torch.no_grad()
    def logits(
        self, canvas: torch.Tensor | Sequence[int], attendable: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits for the token at each position, in the network's dtype, [..., T, V]."""
        ids = self._ids(canvas)
        rows = ids if ids.ndim == 2 else ids[None]
        keys, pairs = self._attendable(rows, ids.ndim, attendable)
        raw = self._forward(rows, keys, pairs)
        aligned = self._aligned(raw, keys) if self.family.shift else raw
        return aligned if ids.ndim == 2 else aligned[0]

    @torch.no_grad()
    def extend(
        self, ids: torch.Tensor, keys: torch.Tensor | None = None, cache: DynamicCache | None = None
    ) -> tuple[torch.Tensor, DynamicCache]:
        """Logits [B, V] for the token after `ids` [B, n], given `cache`; for autoregression.

        `keys` [B, held + n] marks real tokens where rows are padded on the left.
        """
        cache = DynamicCache(config=self.network.config) if cache is None else cache
        inputs: dict[str, Any] = {}
        if keys is not None:
            inputs["attention_mask"] = keys.long()
            inputs["position_ids"] = _token_positions(keys)[:, -ids.shape[1] :]
        output = self.network(
            ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **inputs
        )
        return output.logits[:, -1], output.past_key_values

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; text and messages get the tokenizer's own special tokens, once."""
        if isinstance(prompt, str):
            return self._encode_text(prompt)
        items: list[Any] = (
            prompt.tolist() if isinstance(prompt, torch.Tensor | np.ndarray) else list(prompt)
        )
        if not items:
            raise PromptError("the prompt is empty: give text, messages or at least one token id")
        if all(isinstance(item, Mapping) for item in items):
            tokenizer = self._tokenizer("messages")
            if not tokenizer.chat_template:
                raise PromptError(f"{self.source} has no chat template: give the prompt as text")
            encoded = tokenizer.apply_chat_template(
                items, add_generation_prompt=True, return_dict=True
            )
            return list(encoded["input_ids"])
        if not all(
            isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items
        ):
            raise PromptError(
                "a prompt is text, a list of token ids, or a list of {'role', 'content'} messages"
            )
        self._in_vocabulary(items)
        return [int(item) for item in items]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of some ids, special tokens left out; ids in words where there is no tokenizer."""
        if self.tokenizer is None:
            return " ".join(str(i) for i in ids)
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def check(self) -> list[Check]:
        """Measure the laws every model must obey; raises ModelError where one does not hold."""
        return check(self)

    def describe(self) -> dict[str, Any]:
        """What a manifest says of the model."""
        return {
            "source": self.source,
            "revision": self.revision,
            "family": self.family.name,
            "kind": self.family.kind,
            "network": type(self.network).__name__,
            "visibility": self.family.visibility,
            "block": self.block,
            "shift": self.family.shift,
            "mask_id": self.specials.mask_id,
            "sink_id": self.sink_id,
            "gated": self.gated,
            "layers": self.num_layers,
            "heads": self.num_heads,
            "kv_heads": self.num_kv_heads,
            "vocab_size": self.vocab_size,
            "weights": self.digest,
            "tokenizer": tokenizer_digest(self.tokenizer),
            "dtype": str(self.network.dtype).removeprefix("torch."),
            "device": self.device.type,
            "kernel": self.network.config._attn_implementation,
            "notes": list(self.notes),
        }

    def _tokenizer(self, what: str) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise PromptError(
                f"{self.source} has no tokenizer, so {what} cannot be read: give token ids"
            )
        return self.tokenizer

    def _encode_text(self, text: str) -> list[int]:
        if not text:
            raise PromptError("the prompt is empty: give text, messages or at least one token id")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the prompt has a lone surrogate at character {error.start}, which is no text: "
                "read the file as UTF-8, or replace it"
            ) from None
        ids = self._tokenizer("text")(text)["input_ids"]
        if not ids:
            raise PromptError("the prompt has no tokens: give text that the tokenizer knows")
        return list(ids)

    def _in_vocabulary(self, ids: Sequence[int]) -> None:
        if wrong := [i for i in ids if not 0 <= i < self.vocab_size]:
            raise PromptError(
                f"token id {wrong[0]} is outside the vocabulary of {self.source}: "
                f"ids run from 0 to {self.vocab_size - 1}"
            )

    def _ids(self, canvas: torch.Tensor | Sequence[int]) -> torch.Tensor:
        ids = torch.as_tensor(canvas, device=self.device)
        if ids.dtype not in (torch.int64, torch.int32) or ids.ndim not in (1, 2) or not ids.numel():
            raise PromptError(
                "a canvas is whole token ids, [T] or [rows, T]: "
                f"got {ids.dtype} of shape {list(ids.shape)}"
            )
        low, high = int(ids.min()), int(ids.max())
        self._in_vocabulary([low, high])
        if ids.shape[-1] > self.num_positions:
            raise PromptError(
                f"the canvas has {ids.shape[-1]} positions "
                f"and {self.source} was made for {self.num_positions}: "
                "shorten the prompt or the answer"
            )
        return ids.long()

    def _attendable(
        self, rows: torch.Tensor, dims: int, attendable: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Split into keys [B, T] and pairs [B, T, T], either None where nothing is hidden."""
        if attendable is None:
            return None, None
        given = torch.as_tensor(attendable, device=self.device).bool()
        given = given if dims == 2 else given[None]
        batch, length = rows.shape
        if given.shape == (batch, length):
            return (None, None) if bool(given.all()) else (given, None)
        if given.shape == (batch, length, length):
            return None, given
        raise SpecError(
            f"attendable has shape {list(torch.as_tensor(attendable).shape)}: "
            f"expected [..., {length}] (keys) or [..., {length}, {length}] (queries by keys)"
        )

    def _forward(
        self, rows: torch.Tensor, keys: torch.Tensor | None, pairs: torch.Tensor | None
    ) -> torch.Tensor:
        """Raw logits of the network, one row for each canvas position."""
        positions = self._positions(rows, keys)
        pairs = self._pairs(rows, keys, pairs, positions)
        inputs: dict[str, Any] = {}
        if positions is not None:
            if self.sink_id is not None:  # the sink is at 0 and the first real token at 1, always
                positions = torch.nn.functional.pad(positions + 1, (1, 0))
            inputs["position_ids"] = positions
        if pairs is not None:
            inputs["attention_mask"] = pairs[:, None]
        elif keys is not None:
            inputs["attention_mask"] = keys.long()
        if self.sink_id is None:
            return self.network(rows, **inputs).logits
        sink = torch.full_like(rows[:, :1], self.sink_id)
        return self.network(torch.cat([sink, rows], dim=1), **inputs).logits[:, 1:]

    def _positions(self, rows: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor | None:
        """Position ids, or None where the network's own (0, 1, 2, ...) are right."""
        if self.network.config.model_type == "roberta":
            real = torch.ones_like(rows, dtype=torch.bool) if keys is None else keys
            return _token_positions(real) + int(self.network.config.pad_token_id) + 1
        if keys is None or self.family.positions == "canvas":
            return None
        return _token_positions(keys)

    def _pairs(
        self,
        rows: torch.Tensor,
        keys: torch.Tensor | None,
        pairs: torch.Tensor | None,
        positions: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """Who may look at whom [B, T, T], or None where the network's own visibility is enough."""
        if pairs is None and self.block is None and self.sink_id is None:
            return None
        batch, length = rows.shape
        if pairs is None:
            pairs = rows.new_ones(batch, length, length, dtype=torch.bool)
        elif "sliding_attention" in (getattr(self.network.config, "layer_types", None) or ()):
            raise SpecError(
                f"{self.source} has sliding-window layers: attendable may only hide keys, [..., T]"
            )
        places = torch.arange(length, device=rows.device).expand(batch, -1)
        if self.family.visibility == "causal":
            pairs = pairs & (places[:, :, None] >= places[:, None, :])
        if self.block is not None:
            block = (places if positions is None else positions) // self.block
            pairs = pairs & (block[:, :, None] >= block[:, None, :])
        if keys is not None:
            # A padded query keeps itself: a row with no key at all has no softmax.
            pairs = (pairs & keys[:, None, :]) | torch.eye(
                length, dtype=torch.bool, device=rows.device
            )
        if self.sink_id is not None:
            pairs = torch.nn.functional.pad(pairs, (1, 0, 1, 0), value=True)
            pairs[:, 0, 1:] = False  # the sink looks only at itself
        return pairs

    def _aligned(self, raw: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        """Row p-1 moved to p. A first token keeps its row (as in Dream) or, in an ARM, has none."""
        aligned = torch.cat([raw[:, :1], raw[:, :-1]], dim=1)
        places = torch.arange(raw.shape[1], device=raw.device)
        first = (places == 0).expand(raw.shape[:2]) if keys is None else places == _start(keys)
        if self.family.kind == "arm":
            return aligned.masked_fill(first[..., None], float("nan"))
        return torch.where(first[..., None], raw, aligned) if keys is not None else aligned


def _start(keys: torch.Tensor) -> torch.Tensor:
    """[B, 1] where each row's real tokens begin; a key hidden further on is hidden, not padding."""
    return keys.int().argmax(dim=-1, keepdim=True)


def _token_positions(keys: torch.Tensor) -> torch.Tensor:
    """0, 1, 2, ... from the first real token; padding before it gets 0."""
    return (torch.arange(keys.shape[1], device=keys.device) - _start(keys)).clamp(min=0)
