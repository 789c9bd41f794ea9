"""Prompts to token ids: text, ids or chat messages, refused in one line where they are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from anchorwatch.errors import PromptError
from anchorwatch.models.templates import bounded, check_template

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or chat messages."""

_TEMPLATE_FAULTS = (
    *(TemplateError, ValueError, TypeError, ArithmeticError, LookupError),
    *(MemoryError, RecursionError),
)
_SEQUENCES = (Sequence, np.ndarray, torch.Tensor)
_A_PROMPT = "a prompt is text, a list of token ids, or a list of {'role', 'content'} messages"
_EMPTY = "the prompt is empty: give text, messages or at least one token id"


def encode_prompt(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase | None, source: str
) -> list[int]:
    """Token ids of a prompt for the model called `source`."""
    if isinstance(prompt, str):
        return _text(prompt, tokenizer, source)
    if isinstance(prompt, bytes) or not isinstance(prompt, _SEQUENCES):
        raise PromptError(f"{_A_PROMPT}: got {type(prompt).__name__}")
    items: list[Any] = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
    if not items:
        raise PromptError(_EMPTY)
    if all(isinstance(item, Mapping) for item in items):
        return _messages(items, tokenizer, source)
    if all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in items):
        return [int(item) for item in items]
    raise PromptError(_A_PROMPT)


def _text(text: str, tokenizer: PreTrainedTokenizerBase | None, source: str) -> list[int]:
    if not text:
        raise PromptError(_EMPTY)
    _no_surrogates(text, "the prompt")
    if tokenizer is None:
        raise PromptError(f"{source} has no tokenizer, so text cannot be read: give token ids")
    try:
        ids = tokenizer(text)["input_ids"]
    except Exception as error:  # tokenizers, written in Rust, raises nothing more particular
        raise PromptError(
            f"the tokenizer of {source} cannot read this prompt ({error}): give token ids"
        ) from error
    if not ids:
        raise PromptError("the prompt has no tokens: give text that the tokenizer knows")
    return list(ids)


def _messages(
    messages: list[Any], tokenizer: PreTrainedTokenizerBase | None, source: str
) -> list[int]:
    if tokenizer is None:
        raise PromptError(f"{source} has no tokenizer, so messages cannot be read: give token ids")
    if not tokenizer.chat_template:
        raise PromptError(f"{source} has no chat template: give the prompt as text")
    check_template(tokenizer.chat_template)
    for place, message in enumerate(messages):
        if not all(isinstance(message.get(part), str) for part in ("role", "content")):
            raise PromptError(f"message {place} needs 'role' and 'content', both text")
        _no_surrogates(message["content"], f"message {place}")
    try:
        with bounded():
            made = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=True
            )
    except _TEMPLATE_FAULTS as error:
        raise PromptError(f"the chat template does not take these messages: {error}") from error
    if not made["input_ids"]:
        raise PromptError("the chat template makes nothing of these messages: give text")
    return list(made["input_ids"])


def _no_surrogates(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{what} has a lone surrogate at character {error.start}, which is no text: "
            "read the file as UTF-8, or replace it"
        ) from None
