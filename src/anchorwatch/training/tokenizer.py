"""A byte-level BPE of our own: any text goes in and comes back, and no text makes a special token.

`Vocabulary.ids` reads every text as text, also one that spells `<|mask|>`: special tokens stand
only where a corpus puts them. The saved files read as every checkpoint's do: a prompt may spell
the mask token, to have it filled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from anchorwatch.errors import ModelError, SpecError
from anchorwatch.models.families import by_name
from anchorwatch.models.tokens import load_tokenizer

SPECIALS = ("<|pad|>", "<|start|>", "<|end|>", "<|mask|>", "<|user|>", "<|answer|>")
SMALLEST, LARGEST = 512, 65536
_PAD, _START, _END, _MASK, _USER, _ANSWER = SPECIALS
_NUMBERS = Regex(r" ?\p{N}{1,2}")  # digits by two: an unseen year is made of known pairs
_PAIRS = "\n".join(f"{number:02}" for number in range(100))
_SPACE, _LETTER = "\N{LOWER ONE EIGHTH BLOCK}", "a"
"""SentencePiece's mark of a space; and a letter that no tokenizer joins with a space behind it."""
_OFTEN = 1000
"""How often each pair of digits is shown, so that all have an entry of their own."""
_CHAT = (
    "<|start|>{% for message in messages %}"
    "{% if message.role == 'user' %}<|user|>{{ message.content }}"
    "{% else %}<|answer|>{{ ' ' + message.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|answer|>{% endif %}"
)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A stock tokenizer, read as training text is: without surprises."""

    stock: PreTrainedTokenizerBase
    """As `aw.load` gives it and as it is saved."""

    def __post_init__(self) -> None:
        if not getattr(self.stock, "is_fast", False):
            raise SpecError("the tokenizer has no tokenizer.json: a corpus needs one that has")

    @cached_property
    def _plain(self) -> Tokenizer:
        """A copy of the backend that takes special tokens in a text for text."""
        plain = Tokenizer.from_str(self.stock.backend_tokenizer.to_str())
        plain.encode_special_tokens = True
        plain.no_truncation()
        plain.no_padding()
        return plain

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, whatever it spells; nothing is added."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def ids_inside(self, text: str) -> list[int]:
        """Token ids of a text that stands behind another, so that no space is put before it.

        SentencePiece's spacing puts a space before every text. It is kept off by reading the text
        behind a letter, whose tokens are then cut away.
        """
        if not self._adds_space:
            return self.ids(text)
        before, whole = self.ids(_LETTER), self.ids(_LETTER + text)
        if whole[: len(before)] != before:
            raise SpecError(
                f"the tokenizer joins {_LETTER + text[:20]!r} across its first letter: give a text "
                "that begins with a space or a new line"
            )
        return whole[len(before) :]

    @cached_property
    def _adds_space(self) -> bool:
        """Whether a text that begins with a letter is read as if a space stood before it."""
        return str(self._plain.id_to_token(self.ids(_LETTER)[0])).startswith(_SPACE)

    def id_of(self, token: str) -> int:
        """The id of a token by its name; refuses a name that the tokenizer does not know."""
        number = self._plain.token_to_id(token)
        if number is None:
            raise SpecError(
                f"the tokenizer has no token {token!r}: its special tokens are "
                f"{', '.join(map(str, self.stock.all_special_tokens))}"
            )
        return int(number)

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens spelled out."""
        return str(self._plain.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def start(self) -> list[int]:
        """What the stock tokenizer puts before a text: the start token, or nothing."""
        bare, whole = self.ids("a"), list(self.stock("a")["input_ids"])
        return whole[: len(whole) - len(bare)] if whole[-len(bare) :] == bare else []

    @property
    def end(self) -> int:
        """The token after an answer, and between texts."""
        if self.stock.eos_token_id is None:
            raise SpecError("the tokenizer has no end token: add eos_token to its config")
        return int(self.stock.eos_token_id)

    @cached_property
    def roles(self) -> tuple[int, int] | None:
        """Ids of <|user|> and <|answer|>; None where there are none."""
        added = self.stock.get_added_vocab()
        return (added[_USER], added[_ANSWER]) if {_USER, _ANSWER} <= added.keys() else None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the whole definition."""
        return hashlib.sha256(self.stock.backend_tokenizer.to_str().encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.stock)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json into a folder."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.stock.save_pretrained(str(folder))


def train_vocabulary(texts: Iterable[str], size: int = 2048) -> Vocabulary:
    """A vocabulary of at most `size` entries, learned from texts; the same for the same texts."""
    if isinstance(size, bool) or not isinstance(size, int) or not SMALLEST <= size <= LARGEST:
        raise SpecError(f"a vocabulary of {size!r}: expected {SMALLEST} to {LARGEST} entries")
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_NUMBERS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.encode_special_tokens = True  # what the texts spell is text
    backend.train_from_iterator(chain(repeat(_PAIRS, _OFTEN), texts), trainer)
    backend.encode_special_tokens = False
    backend.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A", pair=f"{_START} $A $B", special_tokens=[(_START, 1)]
    )
    stock = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=_PAD,
        bos_token=_START,
        eos_token=_END,
        mask_token=_MASK,
        additional_special_tokens=[_USER, _ANSWER],
        clean_up_tokenization_spaces=False,
    )
    stock.chat_template = _CHAT
    return Vocabulary(stock)


def read_vocabulary(folder: str | Path) -> Vocabulary:
    """The tokenizer of a folder, as `aw.load` reads it."""
    folder = Path(folder).expanduser()
    stock = load_tokenizer(folder, by_name("llada")) if folder.is_dir() else None
    if stock is None:
        raise ModelError(f"{folder} holds no tokenizer: give a folder with a tokenizer.json")
    return Vocabulary(stock)
