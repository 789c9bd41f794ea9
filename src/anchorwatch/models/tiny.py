"""Embedded tiny models: real architectures, seeded random weights, no files, no download.

They know nothing, but everything that works on a real checkpoint works on them. The vocabulary is
a list of sailors' words with characters and bytes to fall back on, so that any text can be a prompt
and what comes out can be read aloud. Each tensor's values derive from its own name.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import Unigram
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from anchorwatch.errors import AnchorwatchWarning, ModelError
from anchorwatch.models.attention import NAME, register
from anchorwatch.models.config import set_visibility
from anchorwatch.models.families import by_name
from anchorwatch.models.model import Model
from anchorwatch.models.tokens import (
    find_mask,
    note_overruled_mask,
    require_inside,
    specials_of,
)

_SPECIALS = ("<|pad|>", "<|start|>", "<|end|>", "<|mask|>", "<|user|>", "<|answer|>")
PAD, START, END, MASK = range(4)
_WORDS = """
the a of to and in on at by for with from was is are were be has had not no yes who what where when
how which this that it he she they we you I one two three four five six seven eight nine ten many
few all some more most first last next new old long short high low deep far near north south east
west anchor anchors awash ballast bay beacon beam bell berth bilge boat boom bow bridge buoy cabin
cable calm captain chain chart cleat clouds coast compass course crew current dawn deck depth dinghy
dock drift drifts ebb ensign fathom ferry fleet float floats flood fog forward galley gale gauge
grip hail halyard harbor haul heading heel helm hold horizon hull island jetty jib keel knot knots
lamp land lantern lee line lines lighthouse log lookout map mast mate mooring moon morning night oar
ocean pier pilot port quay radio rain reef rigging ripple rope rudder sail sails sailor salt sand
sea shallow ship ships shoal shore signal sink sinks sky sound squall stars starboard stem stern
storm strait stream sun surf swell tack tide tides tiller token tow trim vessel voyage wake watch
watches water wave waves wharf wheel wind winds yard Passage Question Answer Lena Oslo born city
river name day year
""".split()
_CHAT = (
    "{% for message in messages %}<|{{ message.role if message.role == 'user' else 'answer' }}|>"
    "{{ message.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|answer|>{% endif %}"
)
_SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "pad_token_id": PAD,
    "bos_token_id": START,
    "eos_token_id": END,
}
_KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # name: (family, transformers' model_type, what differs)
    "tiny/llada": ("llada", "llama", {"num_key_value_heads": 4, "rope_theta": 500000.0}),
    "tiny/dream": ("dream", "qwen2", {"num_key_value_heads": 2, "rope_theta": 1000000.0}),
    "tiny/arm": ("causal", "llama", {"num_key_value_heads": 2}),
    "tiny/bert": ("encoder", "bert", {}),
}
NAMES = tuple(_KINDS)


def build(name: str, dtype: torch.dtype, mask_id: int | None = None) -> Model:
    """The embedded model called `name`."""
    register()
    family_name, model_type, differs = kind_of(name)
    family = by_name(family_name)
    tokenizer = make_tokenizer(_WORDS, masked=family.kind == "mdm")
    mask = find_mask(mask_id, {}, {}, tokenizer, family)
    require_inside(mask, len(tokenizer), given=mask_id)
    config = AutoConfig.for_model(model_type, vocab_size=len(tokenizer), **_SHAPE, **differs)
    config.tie_word_embeddings = False
    set_visibility(family, config)
    auto = AutoModelForMaskedLM if family.masked_lm else AutoModelForCausalLM
    network = auto.from_config(
        config, attn_implementation=NAME, dtype=dtype, trust_remote_code=False
    )
    _fill(network, name)
    rows = len(tokenizer), len(tokenizer)
    specials, notes = specials_of(mask, config.to_dict(), {}, tokenizer, rows)
    overruled = note_overruled_mask(name, mask_id, {}, {}, tokenizer)
    for note in overruled:
        warnings.warn(note, AnchorwatchWarning, stacklevel=3)
    return Model(
        source=name,
        family=family,
        network=network.eval().requires_grad_(False),
        tokenizer=tokenizer,
        specials=specials,
        notes=(*notes, *overruled),
    )


def kind_of(name: str) -> tuple[str, str, dict[str, Any]]:
    """What an embedded model is: family, transformers' model_type, what differs."""
    if name not in _KINDS:
        raise ModelError(f"there is no embedded model {name!r}: expected one of {', '.join(NAMES)}")
    return _KINDS[name]


@torch.no_grad()
def _fill(network: PreTrainedModel, name: str) -> None:
    """Seed every tensor by model and tensor name; words are likelier than bytes and specials."""
    for tensor_name, parameter in network.named_parameters():
        # A seed of its own for each tensor: a new layer does not change the others.
        seed = hashlib.sha256(f"{name}:{tensor_name}".encode()).digest()[:8]
        generator = torch.Generator().manual_seed(int.from_bytes(seed, "big") >> 1)
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:
            scale = "norm" in tensor_name.lower() and "bias" not in tensor_name
            parameter.copy_(0.1 * noise + scale)
        elif "embed" in tensor_name:
            parameter.copy_(noise)
        else:
            parameter.copy_(noise * 2.5 / parameter.shape[1] ** 0.5)
    # Flatter logits for bytes and specials, so that words are likelier.
    rows = network.get_output_embeddings().weight
    rows[: -len(_WORDS)] *= 0.4


def make_tokenizer(
    words: Iterable[str], *, masked: bool, more: Iterable[str] = (), start: bool = False
) -> PreTrainedTokenizerFast:
    """Words after a space, and characters and bytes for everything else.

    `more` are pieces as they stand (a word at the beginning of a line, a syllable); with `start`
    the start token stands before every text.
    """
    characters = ["▁", "\n", *(chr(code) for code in range(33, 127))]
    pieces = [(special, 0.0) for special in _SPECIALS]
    pieces += [(f"<0x{byte:02X}>", -30.0) for byte in range(256)]
    pieces += [(character, -10.0) for character in characters]
    pieces += [(f"▁{word}", -2.0) for word in words]
    pieces += [(piece, -4.0) for piece in more]
    backend = Tokenizer(Unigram(pieces, unk_id=6, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    if start:
        first = _SPECIALS[START]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, START)]
        )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=_SPECIALS[PAD],
        bos_token=_SPECIALS[START],
        eos_token=_SPECIALS[END],
        mask_token=_SPECIALS[MASK] if masked else None,
        additional_special_tokens=list(_SPECIALS[4:]),
    )
    tokenizer.chat_template = _CHAT
    return tokenizer
