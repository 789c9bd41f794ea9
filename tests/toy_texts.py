"""A toy corpus and its tokenizer: numbers from a seed, the last four tokens of a text its answer."""

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

SPECIALS = ("<|pad|>", "<|start|>", "<|end|>", "<|mask|>", "<|user|>", "<|answer|>")
WORDS = 40
MASK = SPECIALS.index("<|mask|>")


@dataclass(frozen=True)
class Text:
    ids: np.ndarray
    scored: np.ndarray


@dataclass(frozen=True)
class Texts:
    """`count` different texts over and over; every third is shorter where they are `ragged`."""

    count: int = 64
    length: int = 16
    words: int = WORDS
    ragged: bool = True
    answer: int = 4

    def __getitem__(self, index):
        index %= self.count
        length = self.length - 3 if self.ragged and index % 3 == 0 else self.length
        ids = np.random.default_rng([7, index]).integers(len(SPECIALS), self.words, length)
        return Text(ids, np.arange(length) >= length - self.answer)

    @property
    def digest(self):
        return repr(self)

    def describe(self):
        return {"kind": "toy"}


def tokenizer(words=WORDS, *, masked=True):
    """Words w0, w1, ... after the special tokens."""
    names = [*SPECIALS, *(f"w{i}" for i in range(words - len(SPECIALS)))]
    if not masked:
        names[MASK] = "<|spare|>"
    backend = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token=names[0]))
    special = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIALS, strict=False))
    if masked:
        special["mask_token"] = SPECIALS[MASK]
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def fields(**differs):
    """A small spec; a table given replaces the whole table."""
    return {
        "model": {"layers": 2, "width": 32, "heads": 4},
        "length": 16,
        "batch": 8,
        "updates": 12,
        "optimizer": {"lr": 1e-2},
    } | differs


@contextmanager
def stopped_before(update):
    """A training run inside stops before this update, as if it had been killed."""
    from anchorwatch.training import loop

    class StopError(Exception):
        pass

    def stopping(trainer, batches, one=loop.Trainer._train_update):
        if trainer.update == update:
            raise StopError
        return one(trainer, batches)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(StopError):
        patch.setattr(loop.Trainer, "_train_update", stopping)
        yield
