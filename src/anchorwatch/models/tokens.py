"""Token ids with a meaning (mask, end, special), and the stock tokenizer of a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers import (
    AutoTokenizer,
    BertTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from anchorwatch.errors import ModelError, SpecError
from anchorwatch.models.checkpoint import read_json
from anchorwatch.models.families import MASK_TOKENS, Family

_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|role_end|>", "<|endoftext|>", "<end_of_turn>", "</s>")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True)
class Specials:
    """Token ids with a meaning; empty or None where the checkpoint names none."""

    mask_id: int | None
    eos_ids: tuple[int, ...]
    """What transformers' generate stops at."""
    end_ids: tuple[int, ...]
    """eos and every end-of-turn token: what `forbid_end` and `defer_end` speak of."""
    bos_id: int | None
    pad_id: int
    """An id to fill padding with; it is never looked at."""
    special_ids: frozenset[int]
    """All of these and the tokenizer's own: their positions have the role `special`."""


def load_tokenizer(folder: Path, family: Family) -> PreTrainedTokenizerBase | None:
    """The folder's tokenizer through a stock class; None where the folder has none."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    named = read_json(folder / "tokenizer_config.json", missing={}).get("tokenizer_class")
    stock = named is None or hasattr(transformers, str(named))
    try:
        if not stock and family.tokenizer is not None:
            cls = getattr(transformers, family.tokenizer)
            tokenizer: PreTrainedTokenizerBase = cls.from_pretrained(folder)
        elif not stock:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        else:
            tokenizer = _auto_tokenizer(folder)
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        raise ModelError(
            f"the tokenizer in {folder} cannot be read by a stock class: {error}"
        ) from error
    return tokenizer


def find_mask(
    given: int | None,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase | None,
    family: Family,
) -> int | None:
    """The mask id: as given, else what config and tokenizer agree on, else the family's own.

    None for an autoregressive model, which has no use for one.
    """
    if family.kind == "arm":
        if given is not None:
            raise SpecError("an autoregressive model has no mask token: leave mask_id out")
        return None
    if given is not None:
        return given
    sources: dict[str, int] = {}
    if config.get("mask_token_id") is not None:
        sources["config.json"] = int(config["mask_token_id"])
    if generation.get("mask_token_id") is not None:
        sources["generation_config.json"] = int(generation["mask_token_id"])
    if tokenizer is not None:
        if tokenizer.mask_token_id is not None:
            sources["tokenizer.mask_token"] = int(tokenizer.mask_token_id)
        elif (named := _added_mask(tokenizer)) is not None:
            sources[f"the added token {named[0]}"] = named[1]
    if len(set(sources.values())) > 1:
        said = " and ".join(f"{where} says {mask_id}" for where, mask_id in sources.items())
        raise ModelError(f"the mask id is not certain: {said}; say which with mask_id=")
    found = next(iter(sources.values()), family.mask_id)
    if found is None:
        raise ModelError(
            f"no mask token was found for this {family.name} model "
            "in config.json or the tokenizer: say mask_id="
        )
    return found


def specials_of(
    mask_id: int | None,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase | None,
) -> Specials:
    """Gather the ids with a meaning from generation_config, config and tokenizer, in that order."""

    def ids(name: str) -> tuple[int, ...]:
        for source in (generation, config):
            if source.get(name) is not None:
                value = source[name]
                return tuple(value) if isinstance(value, list | tuple) else (int(value),)
        found = getattr(tokenizer, name, None) if tokenizer is not None else None
        return () if found is None else (int(found),)

    eos, bos, pad = ids("eos_token_id"), ids("bos_token_id"), ids("pad_token_id")
    ends = set(eos)
    special = {*eos, *bos, *pad}
    if tokenizer is not None:
        added = tokenizer.get_added_vocab()
        ends |= {added[name] for name in _TURN_ENDS if name in added}
        special |= set(tokenizer.all_special_ids)
        special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= ends | ({mask_id} if mask_id is not None else set())
    return Specials(
        mask_id=mask_id,
        eos_ids=eos,
        end_ids=tuple(sorted(ends)),
        bos_id=bos[0] if bos else None,
        pad_id=next(iter(pad + eos), 0),
        special_ids=frozenset(special),
    )


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase | None) -> str | None:
    """SHA-256 of the tokenizer's whole definition."""
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = (
        backend.to_str()
        if backend is not None
        else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _auto_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """AutoTokenizer's choice by model_type, unless it cannot read the folder's vocab.txt.

    A class that finds no file of its own does not say so: an ALBERT beside a vocab.txt becomes five
    special tokens, and its mask id is then another token of the model's. vocab.txt is BERT's.
    """
    word_pieces = (folder / "vocab.txt").is_file() and not (folder / "tokenizer.json").is_file()
    if word_pieces and not read_json(folder / "config.json", missing={}).get("model_type"):
        return BertTokenizer.from_pretrained(folder)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False
    )
    if set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids):
        return tokenizer
    if word_pieces:
        return BertTokenizer.from_pretrained(folder)
    raise ValueError(
        f"{type(tokenizer).__name__} found none of its files; "
        "name the class that reads them as tokenizer_class in tokenizer_config.json"
    )


def _added_mask(tokenizer: PreTrainedTokenizerBase) -> tuple[str, int] | None:
    added = tokenizer.get_added_vocab()
    return next(((name, added[name]) for name in MASK_TOKENS if name in added), None)
