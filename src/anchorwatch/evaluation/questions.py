"""Questions as token ids, the runs that answer them, and the record of each answer.

`build_question` makes ids of an item as a context shows it; `encode_pair` makes ids of a prompt and
an answer that is to be scored.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anchorwatch.edits.spec import Edit
from anchorwatch.errors import ItemError, PromptError, SpecError
from anchorwatch.evaluation.contexts import Context
from anchorwatch.evaluation.prompt_templates import (
    Template,
    extract_answer,
    refuse_two_starts,
    until_end,
)
from anchorwatch.evaluation.scores import containment, score_all
from anchorwatch.evaluation.synthetic import Draw, Item, guesser_chance
from anchorwatch.generation.decoding import Blocks, Decoding, LeftToRight, LowConfidence
from anchorwatch.generation.run import plan, run_many
from anchorwatch.models.model import Model
from anchorwatch.probes.spec import Probe
from anchorwatch.trace.trace import Trace

LENGTH = 16
"""Positions of an answer, unless a decoding says otherwise."""


@dataclass(frozen=True)
class Question:
    """An item as one context shows it, as token ids."""

    key: str
    """Of the item, which all contexts share."""
    item: Item
    ids: list[int]
    regions: dict[str, range]


@dataclass(frozen=True)
class QuestionSettings:
    """How the questions of one cell are asked."""

    decoding: Decoding
    template: Template
    edits: tuple[Edit, ...] = ()
    probes: tuple[Probe, ...] | None = None
    """What the trace of each item measures; None keeps no traces."""
    answer: int = LENGTH
    """Positions that are the answer; any after it are only masked."""
    seed: int = 0
    batch: int = 8


def default_decoding(model: Model, length: int = LENGTH) -> Decoding:
    """Greedy, two commits a step where masks are filled."""
    if model.family.kind == "arm":
        return LeftToRight(length=length)
    if model.block is None:
        return LowConfidence(length=length, steps=-(-length // 2))
    blocks = -(-length // model.block)
    each = -(-model.block // 2)
    return LowConfidence(length=blocks * model.block, steps=blocks * each, block=model.block)


def add_masks(decoding: Decoding, context: Context, model: Model) -> Decoding:
    """The decoding with the masked positions that a context appends to those of the answer.

    They form blocks that open later: while the answer is written all of them are there, masked.
    """
    length = decoding.length or LENGTH
    if not context.masks or model.family.kind == "arm":
        return decoding
    if not isinstance(decoding, Blocks):
        raise SpecError(
            f"{context.name}: {type(decoding).__name__} fills all masked positions at once, those "
            "after the answer too: use LowConfidence, RandomOrder or Threshold"
        )
    if context.masks % length:
        more = length * max(1, round(context.masks / length))
        raise SpecError(
            f"{context.name}: masks are appended in whole answers of {length} positions: "
            f"say ~masks{more}, or decode length={context.masks}"
        )
    times = 1 + context.masks // length
    steps = getattr(decoding, "steps", None)
    longer: dict[str, Any] = {"length": length * times, "block": decoding.block or length}
    return replace(decoding, **longer, **({} if steps is None else {"steps": steps * times}))


def build_question(
    model: Model, template: Template, key: str, item: Item, *, parts: bool
) -> Question:
    """The item for this model, tokenised once; PromptError where it cannot be given to it."""
    _refuse_control_tokens(model, item)
    rendered = template.render(item)
    prompt: Any = [{"role": "user", "content": rendered.text}] if template.chat else rendered.text
    ids = model.encode(prompt)
    refuse_two_starts(ids, model.specials.bos_id, model.specials.end_ids)
    regions = (
        token_regions(model, rendered.text, dict(rendered.regions), ids, chat=template.chat)
        if parts
        else {}
    )
    return Question(key, item, ids, regions)


def _refuse_control_tokens(model: Model, item: Item) -> None:
    """Refuse an item that spells a control token: the model would read it as one, not as text.

    An unknown word's token is none, unless the tokenizer has but one for everything.
    """
    if (tokenizer := model.tokenizer) is None:
        return
    special = model.specials
    control = special.special_ids - {tokenizer.unk_token_id} | {*special.end_ids, special.bos_id}
    spelled = {str(token): i for i, token in tokenizer.added_tokens_decoder.items() if i in control}
    for text in (item.question, *(passage.text for passage in item.passages)):
        if names := [name for name in spelled if name in text]:
            raise ItemError(
                f"it spells {names[0]}, a control token of {model.source}: take it out of the text"
            )


def check_fits(model: Model, question: Question, how: QuestionSettings) -> None:
    """Refuse what a run would refuse, before the weights are touched."""
    if len(question.ids) + (how.decoding.length or 0) > model.num_positions:
        raise ItemError(f"it does not fit the {model.num_positions} positions of {model.source}")
    plan(model, question.ids, how.decoding, probes=(), edits=how.edits)


def answer_questions(
    model: Model, questions: Sequence[Question], how: QuestionSettings
) -> list[Trace]:
    """Runs of one batch; each has a seed of its own item, so that no mate decides it."""
    measured = how.probes or ()
    return run_many(
        model,
        [question.ids for question in questions],
        how.decoding,
        regions=[question.regions for question in questions]
        if any(question.regions for question in questions)
        else None,
        probes=measured,
        edits=how.edits,
        seed=[Draw("run", how.seed, question.key).word() >> 1 for question in questions],
        batch=how.batch,
    )


def build_record(
    model: Model, question: Question, trace: Trace, how: QuestionSettings
) -> dict[str, Any]:
    """What one run said, and what that is worth."""
    last = trace.canvas[-1][trace.answer[: how.answer]].tolist()
    written = model.decode(until_end(last, model.specials.end_ids, model.specials.mask_id))
    answer = extract_answer(written, how.template)
    rivals = question.item.metadata.get("counter_answers") or ()
    shown = {passage.kind for passage in question.item.passages}
    scores = score_all(answer, question.item.answers)
    scores["misled"] = containment(answer, rivals if "counterfactual" in shown else ())
    return _item_fields(question.key, question.item) | {
        "prediction": answer,
        "written": written,
        "scores": {name: None if math.isnan(value) else value for name, value in scores.items()},
        "narrow": int(trace["narrow"].values.sum()),
        "left_masked": sum(token == model.specials.mask_id for token in last),
        "prompt_positions": len(question.ids),
        "steps": trace.num_steps,
        "run": trace.digest()[:12],
    }


def build_skipped(key: str, item: Item, why: str, positions: int = -1) -> dict[str, Any]:
    """An item that could not be asked, and why; -1 where it did not come to a prompt."""
    nothing = {"prediction": "", "written": "", "scores": None, "narrow": 0, "left_masked": 0}
    rest = {"prompt_positions": positions, "steps": -1, "run": ""}
    return _item_fields(key, item) | nothing | rest | {"unfit": why}


def keep_trace(trace: Trace, folder: Path, key: str) -> None:
    """Write the trace of an item; one that a kill left without its line gives way."""
    target = folder / f"{key}.trace"
    folder.mkdir(exist_ok=True)
    if target.exists():
        shutil.rmtree(target)
    trace.write(target)


def _item_fields(key: str, item: Item) -> dict[str, Any]:
    places = [number for number, passage in enumerate(item.passages, start=1) if passage.gold]
    guesser = guesser_chance(item)
    return {
        "item": key,
        "id": str(item.metadata.get("id", item.metadata.get("index", ""))),
        "question": item.question,
        "answers": list(item.answers),
        "passages": len(item.passages),
        "gold_places": places,
        "guesser": None if math.isnan(guesser) else guesser,
        "unfit": "",
    }


def token_regions(
    model: Model,
    text: str,
    spans: dict[str, tuple[int, int]],
    ids: list[int],
    *,
    chat: bool,
) -> dict[str, range]:
    """Token positions of each part of a text: those that begin inside of it, their space skipped.

    `ids` are the prompt's: the text, or with `chat` the template around it as the one message.
    """
    tokenizer: Any = model.tokenizer
    if not getattr(tokenizer, "is_fast", False):
        raise SpecError(
            "the tokenizer is slow and does not know where a token begins: keep no traces"
        )
    spelled, added = text, {}
    if chat:
        message = [{"role": "user", "content": text}]
        spelled = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        added = {"add_special_tokens": False}
    encoded = tokenizer(spelled, return_offsets_mapping=True, **added)
    if list(encoded["input_ids"]) != ids or spelled.count(text) != 1:
        raise PromptError("the chat template rewrites the text, so that its parts cannot be found")
    shift = spelled.index(text)
    begins = []
    for begin, end in encoded["offset_mapping"]:
        piece = spelled[begin:end]
        blank = len(piece) - len(piece.lstrip())
        begins.append(-1 if begin == end else min(begin + blank, end - 1) - shift)
    regions = {}
    for name, (begin, end) in spans.items():
        inside = [index for index, start in enumerate(begins) if begin <= start < end]
        if inside:
            regions[name] = range(inside[0], inside[-1] + 1)
    return regions


def encode_pair(model: Model, index: int, pair: Any) -> tuple[list[int], list[int]]:
    """Prompt and answer as ids, or a refusal that names the item."""
    try:
        prompt, answer = pair
    except (TypeError, ValueError):
        raise PromptError(f"item {index} is not (prompt, answer)") from None
    ids = _encode_prompt(model, prompt), _encode_answer(model, prompt, answer)
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
            f"item {index}: prompt and answer take {room} positions and {model.source} was made "
            f"for {model.num_positions}: shorten the prompt"
        )
    return ids


def _encode_prompt(model: Model, prompt: Any) -> list[int]:
    if hasattr(prompt, "__len__") and len(prompt) == 0:
        return [] if model.specials.bos_id is None else [model.specials.bos_id]
    return model.encode(prompt)


def _encode_answer(model: Model, prompt: Any, answer: Any) -> list[int]:
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
