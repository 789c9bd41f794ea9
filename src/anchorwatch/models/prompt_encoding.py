"""Prompts to token ids: text, ids or chat messages, refused in one line where they are none.

Chat templates are programs of strangers that must end. transformers renders them in a sandbox,
where they reach no file and no object of ours. A template could still loop or grow without end:
its steps are counted, and the numbers in it are read before it runs.
"""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from transformers import PreTrainedTokenizerBase

from anchorwatch.errors import PromptError

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


def as_chat(prompt: Prompt | None) -> Prompt:
    """A text as the message of a user; everything else is refused."""
    if not isinstance(prompt, str):
        raise PromptError("chat=True makes a message of a text: give the prompt as text")
    return [{"role": "user", "content": prompt}]


_CHAT_NAMES = re.compile(
    r"(?i)instruct|chat|(?<![a-z])(sft|it)(?![a-z])|llada-1\.5|llada2|trado|gpt-oss|grpo"
)
"""Words of chat models' names; those from llada-1.5 on were only released as such."""
_MOSTLY = 0.5
"""Share of unknown tokens from which a prompt is not what the tokenizer was made for."""


def misfits(
    prompt: Prompt, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase | None, source: str
) -> list[str]:
    """What does not fit between a prompt and a model, and what would help, in words."""
    if tokenizer is None or not isinstance(prompt, str):
        return []
    notes = []
    unknown = getattr(tokenizer, "unk_token_id", None)
    count = 0 if unknown is None else sum(token == unknown for token in ids)
    if count > _MOSTLY * len(ids):
        notes.append(
            f"{count} of the {len(ids)} tokens of the prompt are unknown to the tokenizer of "
            f"{source}: the model reads almost nothing of it; write it in the language and script "
            "that the model was trained on, or load another model"
        )
    # The last word of a path, or the model that a snapshot of the hub's cache is of.
    words = source.rstrip("/").split("/")
    name = next((word for word in words if word.startswith("models--")), words[-1])
    if tokenizer.chat_template and _CHAT_NAMES.search(name):
        notes.append(
            f"{source} is a chat model and the prompt is plain text: say chat=True, or --chat, so "
            "that it is asked as it was trained to be"
        )
    return notes


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
    for number, message in enumerate(messages):
        if not all(isinstance(message.get(part), str) for part in ("role", "content")):
            raise PromptError(f"message {number} needs 'role' and 'content', both text")
        _no_surrogates(message["content"], f"message {number}")
    try:
        with limit_steps():
            encoded = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=True
            )
    except _TEMPLATE_FAULTS as error:
        raise PromptError(f"the chat template does not take these messages: {error}") from error
    if not encoded["input_ids"]:
        raise PromptError("the chat template makes nothing of these messages: give text")
    return list(encoded["input_ids"])


def _no_surrogates(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{what} has a lone surrogate at character {error.start}, which is no text: "
            "read the file as UTF-8, or replace it"
        ) from None


MOST_STEPS = 1_000_000
"""Lines that a template may run; those of large models run a few thousand for a long talk."""
MOST_BYTES = 256 << 20
"""By which the memory of the process may grow meanwhile."""
_LARGEST = 100_000
_WIDE = re.compile(r"%[-+ #0]*\d{6,}|\{[\w.]*:[-+#0<>^=]*\d{6,}")
"""A format that asks for a very wide field."""
_RENDERED = "<template>"
"""What jinja calls the file of a compiled template."""


class EndlessError(TemplateError):
    """A template that takes more than any talk needs."""


def check_template(template: Any) -> None:
    """Refuse powers, products and widths that one step could fill the memory with."""
    texts = template.values() if isinstance(template, dict) else [template]
    for text in texts:
        if not isinstance(text, str):
            raise PromptError(f"the chat template is {type(text).__name__}: expected text")
        try:
            parsed = _environment().parse(text)
        except (TemplateSyntaxError, RecursionError) as error:
            raise PromptError(f"the chat template cannot be read: {error}") from None
        if problem := _excess(parsed):
            raise PromptError(f"the chat template {problem}: give the prompt as text")


@contextmanager
def limit_steps() -> Iterator[None]:
    """Count the lines that templates run inside, and stop one that runs too many."""
    count, before = 0, sys.gettrace()
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kibibytes here
    inside = False

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal inside
        inside = inside or frame.f_code.co_filename == _RENDERED
        return step if inside else None

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        if count > MOST_STEPS:
            raise EndlessError(f"it runs more than {MOST_STEPS} lines")
        if frame.f_code.co_filename == _RENDERED:
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun
            if grown * unit > MOST_BYTES:
                raise EndlessError(f"it takes more than {MOST_BYTES >> 20} MB")
        return step

    # A trace function is the one way to stop a template from outside of it.
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


def _excess(parsed: nodes.Template) -> str | None:
    """What of a template could take a gigabyte in one step, in words."""
    # Steps are counted later; one step that makes a gigabyte must be found here.
    if parsed.find(nodes.Pow) is not None:
        return "raises to a power (**), which no talk needs"
    for product in parsed.find_all(nodes.Mul):
        sides = (product.left, product.right)
        if not any(isinstance(side, nodes.Const) and _is_small(side.value) for side in sides):
            return "multiplies by a number it does not name (*), which no talk needs"
    for constant in parsed.find_all(nodes.Const):
        value = constant.value
        if isinstance(value, int | float) and not abs(value) <= _LARGEST:
            return f"counts to {value!r:.30}, which no talk needs"
        if isinstance(value, str) and _WIDE.search(value):
            return "pads a text to a width that no talk needs"
    return None


def _is_small(value: Any) -> bool:
    return isinstance(value, int) and abs(value) <= 1000


class _Generation(Extension):
    """transformers' own tag, around what an assistant writes."""

    tags = {"generation"}  # noqa: RUF012 - as jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> Environment:
    """As transformers reads templates; nothing is rendered here."""
    return Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _Generation],
        autoescape=True,
    )
