"""A prompt and an answer to be scored, as token ids."""

from __future__ import annotations

from typing import Any

from anchorwatch.errors import PromptError
from anchorwatch.models.model import Model


def ids_of(model: Model, place: int, pair: Any) -> tuple[list[int], list[int]]:
    """Prompt and answer as ids, or a refusal that names the item."""
    try:
        prompt, answer = pair
    except (TypeError, ValueError):
        raise PromptError(f"item {place} is not (prompt, answer)") from None
    ids = _prompt_ids(model, prompt), _answer_ids(model, prompt, answer)
    arm, mask_id = model.family.kind == "arm", model.specials.mask_id
    if arm and not ids[0]:
        raise PromptError(
            f"{model.source} has no start token to predict a first one from: give a prompt"
        )
    if mask_id is not None and mask_id in ids[1]:
        raise PromptError(
            f"the answer holds the mask id {mask_id}, which is no token to be scored: leave it out"
        )
    if (room := len(ids[0]) + len(ids[1]) - arm) > model.num_positions:
        raise PromptError(
            f"item {place}: prompt and answer take {room} positions and {model.source} was made "
            f"for {model.num_positions}: shorten the prompt"
        )
    return ids


def _prompt_ids(model: Model, prompt: Any) -> list[int]:
    if hasattr(prompt, "__len__") and len(prompt) == 0:
        return [] if model.specials.bos_id is None else [model.specials.bos_id]
    return model.encode(prompt)


def _answer_ids(model: Model, prompt: Any, answer: Any) -> list[int]:
    """Ids of an answer; text is read as it stands after the prompt."""
    if hasattr(answer, "__len__") and len(answer) == 0:
        raise PromptError("the answer is empty: give text or at least one token id")
    if not isinstance(answer, str):
        return model.encode(answer)
    if model.tokenizer is None:
        raise PromptError(f"{model.source} has no tokenizer: give the answer as token ids")
    before = prompt if isinstance(prompt, str) else ""
    ids = {
        text: list(model.tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in (before, before + answer)
    }
    whole, head = ids[before + answer], ids[before]
    if whole[: len(head)] != head or len(whole) == len(head):
        raise PromptError(
            f"the tokenizer joins the end of the prompt and the answer {answer!r}: begin the "
            "answer with the space that stands before it, or give token ids"
        )
    return whole[len(head) :]
