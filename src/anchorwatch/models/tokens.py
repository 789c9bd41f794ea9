"""Token ids with a meaning (mask, end, special), and the stock tokenizer of a folder."""

from __future__ import annotations

import hashlib
import json
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from packaging.version import InvalidVersion, Version
from tokenizers import Tokenizer
from transformers import (
    CONFIG_MAPPING,
    TOKENIZER_MAPPING,
    AutoTokenizer,
    BertTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from anchorwatch.errors import AnchorwatchWarning, ModelError, SpecError
from anchorwatch.models.checkpoint import has_tokenizer, read_json, refuse_odd_files
from anchorwatch.models.families import MASK_TOKENS, Family, model_type_of
from anchorwatch.trace.escape import one_line

_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|role_end|>", "<|endoftext|>", "<end_of_turn>", "</s>")
_CONFIG = "tokenizer_config.json"
_STOCK = "PreTrainedTokenizerFast"
_ABSTRACT = ("PreTrainedTokenizerBase",)
_OPTIONAL = ("MistralCommonBackend",)
"""Tokenizers of transformers that are a stand-in where another package is missing."""
_NEVER = ("init_inputs", "gguf_file", "tokenizer_object", "mecab_kwargs", "sudachi_kwargs")
"""Fields of tokenizer_config.json that hand a stock class files or objects from elsewhere."""


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
    """The folder's tokenizer through a stock class; None where the folder has none.

    No code of the checkpoint runs: only tokenizer classes of transformers may be named, and
    `auto_map` is not followed.
    """
    if folder.suffix == ".gguf" and folder.is_file():  # a file with its tokenizer inside
        return _diffusion_gguf_tokenizer(folder)
    refuse_odd_files(folder)
    if not has_tokenizer(folder):
        return None
    settings, config = _tokenizer_config(folder), read_json(folder / "config.json", missing={})
    stock = getattr(transformers, family.tokenizer or _STOCK)
    named = settings.get("tokenizer_class")
    bare = _bare_config(folder, config)
    unread = "auto_map" in settings and type(bare) not in TOKENIZER_MAPPING
    if unread if named is None else not _is_known(_CONFIG, named):
        return _read_tokenizer(
            folder, lambda: stock.from_pretrained(folder, trust_remote_code=False)
        )
    return _read_tokenizer(folder, lambda: _auto_tokenizer(folder, bare, config))


def gguf_tokenizer(path: Path, config: Any) -> PreTrainedTokenizerBase:
    """The tokenizer inside a GGUF file; what lies beside it may name no code."""
    folder = path.parent
    refuse_odd_files(folder)
    named = _tokenizer_config(folder).get("tokenizer_class")
    if named is not None:
        _is_known(_CONFIG, named)
    # AutoTokenizer would parse the whole file for the config that is here: its choice, made here.
    stock = TOKENIZER_MAPPING.get(type(config), PreTrainedTokenizerFast)
    if named is not None or getattr(config, "tokenizer_class", None) is not None:
        stock = AutoTokenizer
    return _read_tokenizer(
        path,
        lambda: stock.from_pretrained(str(folder), gguf_file=path.name, trust_remote_code=False),
    )


def _diffusion_gguf_tokenizer(path: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a GGUF file whose architecture transformers does not know; None without."""
    from transformers.integrations.gguf import read_gguf_metadata
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    metadata, _ = _read_tokenizer(path, lambda: read_gguf_metadata(str(path)))
    if "tokenizer.ggml.tokens" not in metadata:
        return None
    # How text is cut before it is merged: unknown ways would cut it GPT-2's way without a word.
    cut = metadata.get("tokenizer.ggml.pre")
    known = metadata.get("tokenizer.ggml.model") != "gpt2" or cut in (
        *GGUF_PRE_TOKENIZER_SPLITS,
        "gpt-2",
        "default",
    )
    if not known:
        warnings.warn(
            f"{path.name} cuts text the way {cut!r}, which transformers does not know: it is cut "
            "as GPT-2 does, so that token ids may differ; give token ids of the model's own "
            "tokenizer instead of text",
            AnchorwatchWarning,
            stacklevel=5,
        )
    return _read_tokenizer(
        path,
        lambda: PreTrainedTokenizerFast.from_pretrained(
            str(path.parent), gguf_file=path.name, trust_remote_code=False
        ),
    )


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
    # Two sources that disagree are refused: a wrong mask id still gives fluent text.
    sources = mask_sources(config, generation, tokenizer)
    if len(set(sources.values())) > 1:
        stated = _spell_sources(sources)
        raise ModelError(f"the mask id is not certain: {stated}; say which with mask_id=")
    mask = next(iter(sources.values()), family.mask_id)
    if mask is None:
        raise ModelError(
            f"no mask token was found for this {family.name} model "
            "in config.json or the tokenizer: say mask_id="
        )
    return mask


def mask_sources(
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase | None,
) -> dict[str, int]:
    """Every place of the checkpoint that names a mask id, and the id it names."""
    sources: dict[str, int] = {}
    for where, fields in (("config.json", config), ("generation_config.json", generation)):
        if fields.get("mask_token_id") is not None:
            (sources[where],) = _token_ids(
                where, "mask_token_id", fields["mask_token_id"], single=True
            )
    if tokenizer is not None:
        if tokenizer.mask_token_id is not None:
            sources["tokenizer.mask_token"] = int(tokenizer.mask_token_id)
        added = tokenizer.get_added_vocab()
        for name in MASK_TOKENS:
            if name in added and added[name] not in sources.values():
                sources[f"the added token {name}"] = added[name]
    return sources


def note_overruled_mask(
    source: str,
    given: int | None,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase | None,
) -> tuple[str, ...]:
    """A note where the `mask_id=` given is none of those that the checkpoint names."""
    if given is None:
        return ()
    try:
        sources = mask_sources(config, generation, tokenizer)
    except ModelError:  # a field that is no token id names no mask
        return ()
    if not sources or given in sources.values():
        return ()
    note = (
        f"{source} is read with mask_id={given}, while {_spell_sources(sources)}: leave mask_id "
        "out, unless it is known that the checkpoint was trained with another one than it says"
    )
    return (note,)


def _spell_sources(sources: Mapping[str, int]) -> str:
    return " and ".join(f"{where} says {mask_id}" for where, mask_id in sources.items())


def checked_mask(mask_id: int | None) -> int | None:
    """A `mask_id=` as given, refused unless it is a whole number."""
    if mask_id is None:
        return None
    try:
        whole = None if isinstance(mask_id, bool) else operator.index(mask_id)
    except TypeError:
        whole = None
    if whole is None:
        raise SpecError(f"mask_id={mask_id!r} is no token id: expected a whole number")
    return whole


def require_inside(mask_id: int | None, rows: int, *, given: int | None) -> None:
    """Refuse a mask id that the embedding has no row for, `given` or the checkpoint's."""
    if mask_id is not None and not 0 <= mask_id < rows:
        fault = ModelError if given is None else SpecError
        raise fault(
            f"mask id {mask_id} is outside the embedding of {rows} rows: "
            f"say mask_id=, from 0 to {rows - 1}"
        )


def specials_of(
    mask_id: int | None,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase | None,
    rows: tuple[int, int],
) -> tuple[Specials, tuple[str, ...]]:
    """Gather the ids with a meaning from generation_config, config and tokenizer, in that order.

    `rows` counts embedding and unembedding. An end or start id outside them can neither be written
    nor read: it is left out, and said in the second value.
    """
    named = {
        name: _said_ids(f"{name}_token_id", config, generation, tokenizer)
        for name in ("eos", "bos", "pad")
    }
    eos = tuple(i for i in named["eos"] if 0 <= i < rows[1])
    bos = tuple(i for i in named["bos"] if 0 <= i < rows[0])
    pad = tuple(i for i in named["pad"] if 0 <= i < rows[0])
    lost = {"eos": set(named["eos"]) - set(eos), "bos": set(named["bos"]) - set(bos)}
    notes = tuple(
        f"{name}_token_id {min(ids)} is outside the vocabulary of {rows[1]}: left out"
        for name, ids in lost.items()
        if ids
    )
    # Chat models end a turn with a token that is not their eos.
    ends = set(eos)
    special = {*eos, *bos, *pad}
    if tokenizer is not None:
        added = tokenizer.get_added_vocab()
        ends |= {added[name] for name in _TURN_ENDS if added.get(name, rows[1]) < rows[1]}
        special |= set(tokenizer.all_special_ids)
        special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= ends | ({mask_id} if mask_id is not None else set())
    specials = Specials(
        mask_id=mask_id,
        eos_ids=eos,
        end_ids=tuple(sorted(ends)),
        bos_id=bos[0] if bos else None,
        pad_id=next(iter(pad + eos), 0),
        special_ids=frozenset(special),
    )
    return specials, notes


def find_single_token(tokenizer: PreTrainedTokenizerBase | None, text: str) -> int:
    """The id of a word that is one token; a space is put before it where that is one, too."""
    if tokenizer is None:
        raise SpecError("this model has no tokenizer: name a token by its id")
    typed = text.replace("␣", " ")
    spellings = [typed] if typed.startswith(" ") else [f" {typed}", typed]
    encoded = [tokenizer.encode(spelling, add_special_tokens=False) for spelling in spellings]
    known = [ids for ids in encoded if ids and tokenizer.unk_token_id not in ids]
    for ids in known:
        if len(ids) == 1:
            return int(ids[0])
    shown = one_line(text)
    if not known:
        raise SpecError(f"“{shown}” is no token of this model: choose a candidate, or another word")
    parts = [one_line(str(tokenizer.decode([token]))).replace(" ", "␣") for token in known[0][:6]]
    listed = ", ".join(f"“{part}”" for part in parts)
    raise SpecError(
        f"“{shown}” is {len(known[0])} tokens of this model ({listed}): a position takes one token"
    )


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase | None) -> str | None:
    """SHA-256 of the tokenizer's whole definition, whatever it was last asked to cut or pad."""
    if tokenizer is None:
        return None
    # The fast tokenizer's JSON is its whole definition; a slow one has only its vocabulary.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and (backend.truncation or backend.padding):
        backend = Tokenizer.from_str(backend.to_str())  # a call changes both
        backend.no_truncation()
        backend.no_padding()
    text = (
        backend.to_str()
        if backend is not None
        else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, refused where it would have files read that are not the folder's."""
    settings = read_json(folder / _CONFIG, missing={})
    if given := [name for name in _NEVER if settings.get(name)]:
        raise ModelError(
            f"{_CONFIG} says {given[0]}={settings[given[0]]!r:.80}, which is not followed: "
            "remove the field"
        )
    files = settings.get("fast_tokenizer_files", [])
    plain = isinstance(files, list) and all(
        isinstance(name, str) and Path(name).name == name for name in files
    )
    if not plain:
        raise ModelError(
            f"{_CONFIG} says fast_tokenizer_files={files!r:.80}: "
            "expected plain names of files beside it"
        )
    options = settings.get("sp_model_kwargs") or {}
    if not isinstance(options, dict) or {"model_file", "model_proto"} & options.keys():
        raise ModelError(
            f"{_CONFIG} says sp_model_kwargs={options!r:.80}: "
            "expected options of SentencePiece without a file"
        )
    return settings


def _bare_config(folder: Path, config: Mapping[str, Any]) -> PreTrainedConfig:
    """What a tokenizer class is chosen by: model_type and tokenizer_class, nothing else.

    The rest of config.json is the network's, and what is wrong with it is said there.
    """
    kind, named = model_type_of(config), config.get("tokenizer_class")
    if (registered := TOKENIZER_MAPPING_NAMES.get(kind)) and not _is_tokenizer(registered):
        raise ModelError(
            f"config.json says model_type={kind!r}, whose {registered} is not read: "
            "expected that of the class in architectures, such as 'llama'"
        )
    version = config.get("transformers_version")
    try:
        Version(version or "0")
    except (InvalidVersion, TypeError):
        raise ModelError(
            f"config.json says transformers_version={version!r:.80}: "
            "expected a version such as '4.46.0', or no such field"
        ) from None
    try:
        bare = CONFIG_MAPPING[kind]() if kind in CONFIG_MAPPING else PreTrainedConfig()
    except (ValueError, TypeError):  # a class that needs the configs of its halves
        bare = PreTrainedConfig()
    if type(bare) is PreTrainedConfig:
        bare.model_type = kind
    bare._name_or_path = str(folder)
    if named is not None:
        _is_known("config.json", named)
        bare.tokenizer_class = named
    return bare


def _is_known(where: str, named: Any) -> bool:
    """Whether transformers has a tokenizer of this name; the name of anything else is refused."""
    if isinstance(named, str) and named.isidentifier():
        # A class may be known with or without Fast in its name.
        spellings = {named, named.removesuffix("Fast"), f"{named}Fast"}
        classes = [name for name in spellings if _has(name)]
        if all(_is_tokenizer(name) for name in classes):
            return bool(classes)
    raise ModelError(
        f"{where} says tokenizer_class={named!r:.80}: "
        f"expected a tokenizer class of transformers, such as {_STOCK!r}"
    )


def _has(name: str) -> bool:
    """Whether transformers has something of that name."""
    try:
        return hasattr(transformers, name)
    except (ImportError, RuntimeError):  # it is there, and needs a package that is not
        return True


def _is_tokenizer(name: str) -> bool:
    """Whether this is a tokenizer class of transformers: no Auto class, no pipeline, no model."""
    if name in _OPTIONAL:
        return True
    kind = getattr(transformers, name, None)
    return (
        isinstance(kind, type)
        and issubclass(kind, PreTrainedTokenizerBase)
        and kind.__module__.startswith("transformers.")
        and kind.__name__ not in _ABSTRACT
    )


def _auto_tokenizer(
    folder: Path, bare: PreTrainedConfig, config: Mapping[str, Any]
) -> PreTrainedTokenizerBase:
    """AutoTokenizer's choice by model_type, unless it cannot read the folder's vocab.txt.

    A class that finds no file of its own does not say so: an ALBERT beside a vocab.txt becomes five
    special tokens, and its mask id is then another token of the model's. vocab.txt is BERT's.
    """
    # A vocab.txt beside a tokenizer.json is not read: the latter is whole.
    word_pieces = (folder / "vocab.txt").is_file() and not (folder / "tokenizer.json").is_file()
    if word_pieces and not config.get("model_type"):
        return BertTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        folder, config=bare, trust_remote_code=False
    )
    if set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids):
        return tokenizer
    if word_pieces:
        return BertTokenizer.from_pretrained(folder, trust_remote_code=False)
    raise ValueError(
        f"{type(tokenizer).__name__} found none of its files; "
        "name the class that reads them as tokenizer_class in tokenizer_config.json"
    )


def _read_tokenizer(
    where: Path, read: Callable[[], PreTrainedTokenizerBase]
) -> PreTrainedTokenizerBase:
    try:
        return read()
    except BaseException as error:  # what tokenizers, written in Rust, raises for a malformed file
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"the tokenizer in {where} cannot be read by a stock class ({reason[:200]}): "
            "download it again, or remove its files and give token ids"
        ) from error


def _said_ids(
    name: str,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase | None,
) -> tuple[int, ...]:
    for where, fields in (("generation_config.json", generation), ("config.json", config)):
        if fields.get(name) is not None:
            return _token_ids(where, name, fields[name])
    token_id = getattr(tokenizer, name, None) if tokenizer is not None else None
    return () if token_id is None else (int(token_id),)


def _token_ids(where: str, name: str, value: Any, *, single: bool = False) -> tuple[int, ...]:
    ids = list(value) if isinstance(value, list | tuple) and not single else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        more = "" if single else " or a list of them"
        raise ModelError(f"{where} says {name}={value!r}: expected a token id{more}")
    return tuple(ids)
