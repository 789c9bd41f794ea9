"""Networks wired by hand: stock Llama classes whose attention is known from the wiring.

Nothing here is trained. Every head is described by a few terms, whose sum is its logit for a query
and a key, and by what its value reads and where it writes. `build` turns such a description into
the weights of an ordinary network, so that every measurement can be held against what must come
out: a sink that stays, a sink that moves, a head that retrieves, attention without any sink.

How the weights do that:

- The residual stream has named channels: yes-or-no features of the token, and blocks of 32 channels
  that hold token codes (unit vectors, one for each token; masks and the start token have none, so
  that their values are empty).
- RMSNorm has a large epsilon and a large weight, which makes it the identity (to one part in 10^5);
  the feed-forward layers are zero. So every layer is exactly its attention.
- The rotary base is 10^16: of the 32 pairs of channels of a head the first turn with the position
  (`Near`, `Slope`), the last 19 turn by less than 10^-4 over 300 positions (`Match`, `Codes`).

What is written is a walk through a fixed order of words: the token after `t` is `t`'s successor. A
diffusion network is sure of a masked position when its neighbour is written, so that it writes from
left to right (or from right to left), one position after another, and never an end token.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from anchorwatch.edits.spec import Addition, sink_token
from anchorwatch.errors import AnchorwatchWarning, ModelError
from anchorwatch.models import trained_additions
from anchorwatch.models.attention import NAME, register
from anchorwatch.models.config import set_visibility
from anchorwatch.models.families import FAMILIES, by_name
from anchorwatch.models.model import Model
from anchorwatch.models.tiny import END, MASK, PAD, START, make_tokenizer
from anchorwatch.models.tokens import (
    find_mask,
    note_overruled_mask,
    require_inside,
    specials_of,
)
from anchorwatch.trace.atomic_io import put_file

FEATURES = (
    *("one", "mask", "text", "start", "later", "newline", "colon", "mark", "structure", "content"),
    *("asks", "silent", "added", "fourth", "eighth", "some"),
)
"""Yes or no of every token: `text` is no mask, `later` no start token, `mark` a line break or a
punctuation mark; `asks` is a mask or a colon, `silent` any other; `added` is a sink token's;
`fourth` is every fourth word of the walk, `eighth` every eighth, `some` a word
that some prompts have."""
BLOCKS = (
    *("features", "token", "name", "walk"),  # of the token itself
    *("before", "previous", "walked", "question", "answer", "rest"),  # what heads have brought
)
"""Parts of the residual stream. `token` is a token's code, `name` the same of KEYS only, `walk` its
state in the walk; `before` has the features of the neighbour, `previous` its name."""
CODE = 32
"""Channels of a block."""
CHANNELS = 64
"""Of a head."""
ROTARY_BASE = 1e16
NEAR_PAIRS = (0, 1, 2, 3)
"""Pairs of channels that tell neighbouring positions apart: they turn by 1, 0.316, 0.1, 0.0316."""
SLOPE_PAIR = 5
"""Its angle is 0.00316 a position: over 300 positions the sine is nearly a straight line."""
SLOPE_RATE = ROTARY_BASE ** (-2 * SLOPE_PAIR / CHANNELS)
STILL = tuple(channel for pair in range(31, 12, -1) for channel in (pair, pair + CHANNELS // 2))
"""Channels that turn by less than 10^-4 over 300 positions, the stillest first."""
EPSILON = 1e6
"""Of RMSNorm: far above any mean square of the residual stream."""


@dataclass(frozen=True)
class Match:
    """weight, where the query has one feature and the key another.

    `base` is the same for all keys and so changes no attention: with it their directions are equal
    and a key with the feature is longer, without it the feature is a direction.
    """

    key: str
    """A feature, or `before:` and a feature: that of the neighbour, once a head has brought it."""
    weight: float
    query: str = "one"
    base: float = 0.0


@dataclass(frozen=True)
class Near:
    """weight times the sum of cos(rate (query - key - offset)) over four rates: `offset` back.

    Of all keys but the start token's, which can so be the one that is left.
    """

    offset: int
    weight: float


@dataclass(frozen=True)
class Slope:
    """weight per position, for keys with a feature: above 0 it prefers the last of them."""

    key: str
    weight: float


@dataclass(frozen=True)
class Codes:
    """weight times the product of two codes, one of the query and one of the key."""

    query: str
    key: str
    weight: float


@dataclass(frozen=True)
class Length:
    """Norm of the keys that lack a feature, at a right angle to every query: no logit."""

    without: str
    weight: float


Term = Match | Near | Slope | Codes | Length


@dataclass(frozen=True)
class Head:
    """One head; without terms its attention is even."""

    terms: tuple[Term, ...] = ()
    reads: tuple[str, ...] = ("token",)
    """One or two blocks that are its value; none for a value of zero."""
    writes: tuple[str, ...] = ("rest",)


@dataclass(frozen=True)
class Wiring:
    """A network: its heads, and what its logits are made of."""

    family: str
    """llada (row p is about position p), dream (row p - 1 is) or causal."""
    layers: tuple[tuple[Head, ...], ...]
    successor: float = 20.0
    """Weight of the walk: of what follows the neighbour, if that is a word of the walk."""
    begin: float = 7.5
    """The same of any other neighbour: less, so that other text is not thought unlikely."""
    answer: float = 40.0
    """Weight of the code that a retrieval head brought."""
    rest: float = 0.0
    """Weight of what the other heads bring, which disturbs: a network that needs its sinks."""
    massive: float = 0.0
    """An activation of the start token that nothing reads."""
    left: float = 0.0
    """Length of the start token's code, and so of its value: empty unless said."""
    known: int = 30
    """How many of KEYS are known by name: of others nothing can be retrieved."""
    from_right: bool = False
    parts: tuple[Addition, ...] = ()

    @property
    def is_causal(self) -> bool:
        return self.family == "causal"

    @property
    def is_shifted(self) -> bool:
        """Whether a row is about the position after its own."""
        return self.family in ("causal", "dream")


# ---------------------------------------------------------------------------------------------
# Words: what is read and written.

FRAME = ("Passage", "Question", "Answer")
"""Words of prompts that follow a line break, and so have no space before them."""
KEYS = """
anchor beacon bell berth boat boom bow bridge buoy cabin cable captain chain chart cleat compass
crew deck dinghy dock ferry fleet galley gauge halyard helm hull jetty jib keel
""".split()
VALUES = """
bay calm clouds coast current dawn depth drift ebb fathom fog gale harbor horizon island lee moon
morning night ocean pier quay rain reef salt sand shoal shore sky squall
""".split()
FILLERS = """
lantern lighthouse mast mate mooring oar pilot port radio rigging ripple rope rudder sail sailor
signal stars starboard stem stern storm strait stream surf swell tack tide tiller
""".split()
"""What the walk goes through."""
FUNCTION_WORDS = """
the The of in was is a It to from by has She He on which out its under and that as where does since
are at it for with most whom Who What Where When
""".split()
OTHERS = """
year capital saw founded first birth commands born trade home sails printed launched town came
captain laid ship built mentor begins ends yards obeys setting book birthplace comes story takes
place read tells life serves aboard dates taught belongs ruler launch took water rules house
""".split()
_SYLLABLES = tuple(onset + vowel for onset in "bdfgkmptvz" for vowel in "aeiou")
_MARKS = frozenset(".,;:!?")


def _tokenizer(*, masked: bool) -> PreTrainedTokenizerFast:
    words = dict.fromkeys([*KEYS, *VALUES, *FILLERS, *FUNCTION_WORDS, *OTHERS, *FRAME])
    starts = [f"▁{syllable.capitalize()}" for syllable in _SYLLABLES]
    return make_tokenizer(words, masked=masked, more=(*FRAME, *_SYLLABLES, *starts), start=True)


@dataclass(frozen=True)
class Vocabulary:
    """Features, codes and states of all tokens."""

    features: np.ndarray
    """[token, feature] 0 or 1."""
    codes: np.ndarray
    """[token, CODE] of length 1; 0 for the mask and the start token, whose values are empty."""
    names: np.ndarray
    """The codes of KEYS, 0 for other tokens."""
    states: np.ndarray
    """[token, CODE] one-hot: which state of the walk a token is; 0 for the mask."""
    written: np.ndarray
    """[state] the token that the walk writes after it."""
    prior: np.ndarray
    """[token] logits by how frequent pieces are in English, for want of anything better."""
    keys: np.ndarray
    """[key] the tokens of KEYS."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
        texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
        codes = np.random.default_rng(0).standard_normal((len(texts), CODE))
        codes /= np.linalg.norm(codes, axis=1, keepdims=True)
        codes[[MASK, START]] = 0.0
        names = np.zeros_like(codes)
        keys = _word_ids(tokenizer, KEYS)
        names[keys] = codes[keys]
        prior = _prior(tokenizer)
        return cls(_features(texts), codes, names, *_walk(tokenizer), prior, np.array(keys))


def _features(texts: list[str]) -> np.ndarray:
    """[token, feature] by the token's text."""
    table = np.zeros((len(texts), len(FEATURES)))
    words = {word.lower() for word in (*FUNCTION_WORDS, *FRAME)}
    for token, text in enumerate(texts):
        bare = text.strip(" ")
        newline = "\n" in text
        special = text.startswith("<|")
        structure = special or newline or bare in _MARKS or bare.lower() in words
        has = {
            "one": True,
            "mask": token == MASK,
            "text": token != MASK,
            "start": token == START,
            "later": token != START,
            "newline": newline,
            "structure": structure and token != MASK,
            "content": not structure,
            "colon": text == ":",
            "mark": newline or bare in _MARKS,
            "asks": token == MASK or text == ":",
            "silent": not (token == MASK or text == ":"),
            "fourth": bare in FILLERS[::4],
            "eighth": bare in FILLERS[3::8],
            "some": bare == OTHERS[0],
        }
        table[token] = [has.get(name, False) for name in FEATURES]
    return table


def _walk(tokenizer: PreTrainedTokenizerFast) -> tuple[np.ndarray, np.ndarray]:
    """[token, state] and [state]: what the walk writes after a token of each state.

    States: the fillers, then any other token, a value, a line break, the start token. A value and
    the last filler are followed by a line break, so that a line has at most 14 words.
    """
    ids = {name: _word_ids(tokenizer, words) for name, words in (("f", FILLERS), ("v", VALUES))}
    newline = tokenizer.convert_tokens_to_ids("\n")
    other, value, break_, start = range(len(FILLERS), len(FILLERS) + 4)
    state = np.full(len(tokenizer), other)
    state[ids["f"]] = np.arange(len(FILLERS))
    state[ids["v"]], state[newline], state[START] = value, break_, start
    states = np.eye(CODE)[state]
    states[MASK] = 0.0
    fillers = ids["f"]
    half = len(fillers) // 2
    return states, np.array(
        [*fillers[1:], newline, fillers[half + 6], newline, fillers[half], fillers[0]]
    )


def _prior(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """[token] rough logits: spaces and letters, then syllables, short words and marks."""
    logits = np.full(len(tokenizer), -6.0)
    letters = "etaoinshrdlucmfwygpbvkxqjz"
    kinds = (
        (["▁"], 3.5),
        *(([letter], 3.0 - 0.15 * rank) for rank, letter in enumerate(letters)),
        (_SYLLABLES, 1.5),
        ([f"▁{word}" for word in FUNCTION_WORDS], 1.5),
        ([*".,"], 2.0),
        (["\n", *"!?'", *letters.upper()], 0.0),
        ([f"▁{word}" for word in (*KEYS, *VALUES, *FILLERS, *OTHERS)], -3.0),
    )
    for pieces, logit in kinds:
        logits[tokenizer.convert_tokens_to_ids(list(pieces))] = logit
    return logits


def _word_ids(tokenizer: PreTrainedTokenizerFast, words: Iterable[str]) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(f"▁{word}") for word in words]


# ---------------------------------------------------------------------------------------------
# From a wiring to weights.

WIDTH = CODE * len(BLOCKS)


def channels_of(name: str) -> slice:
    """Where a feature or a block stands in the residual stream."""
    block, _, of_neighbour = name.partition(":")
    if block in BLOCKS:
        begin = CODE * BLOCKS.index(block)
        if not of_neighbour:
            return slice(begin, begin + CODE)
        return slice(begin + FEATURES.index(of_neighbour), begin + FEATURES.index(of_neighbour) + 1)
    return slice(FEATURES.index(name), FEATURES.index(name) + 1)


def head_weights(head: Head) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Query, key and value [CHANNELS, WIDTH] and output [WIDTH, CHANNELS] of one head."""
    query, key = np.zeros((2, CHANNELS, WIDTH))
    still = iter(STILL)
    one, scale = channels_of("one").start, math.sqrt(CHANNELS)
    for term in head.terms:
        if isinstance(term, Match):
            channel = next(still)
            query[channel, channels_of(term.query)] = scale
            key[channel, one] = term.base
            key[channel, channels_of(term.key)] += term.weight
        elif isinstance(term, Length):
            channel = next(still)
            key[channel, one] = term.weight
            key[channel, channels_of(term.without)] -= term.weight
        elif isinstance(term, Codes):
            channels = [next(still) for _ in range(CODE)]
            query[channels, channels_of(term.query)] = scale * np.eye(CODE)
            key[channels, channels_of(term.key)] = term.weight * np.eye(CODE)
        elif isinstance(term, Near):
            # Query at angle -rate * offset: after rotary its product with the key at angle 0 is
            # cos(rate * (query - key) - rate * offset).
            for pair in NEAR_PAIRS:
                angle = -term.offset * ROTARY_BASE ** (-2 * pair / CHANNELS)
                query[pair, one] = scale * math.cos(angle)
                query[pair + CHANNELS // 2, one] = scale * math.sin(angle)
                key[pair, channels_of("later")] = term.weight
        else:
            # The query a quarter turn behind: sin(rate * (key - query)).
            query[SLOPE_PAIR + CHANNELS // 2, one] = -scale
            key[SLOPE_PAIR, channels_of(term.key)] -= term.weight / SLOPE_RATE
    value, output = np.zeros((CHANNELS, WIDTH)), np.zeros((WIDTH, CHANNELS))
    for which, (read, written) in enumerate(zip(head.reads, head.writes, strict=True)):
        part = slice(which * CODE, (which + 1) * CODE)
        value[part, channels_of(read)] = np.eye(CODE)
        output[channels_of(written), part] = np.eye(CODE)
    return query, key, value, output


def unembedding(wiring: Wiring, words: Vocabulary) -> np.ndarray:
    """[token, WIDTH]: logits as the wiring weighs them; special tokens are never written."""
    table = np.zeros((len(words.codes), WIDTH))
    # What precedes is the row's own token where a row is about the next position.
    own = wiring.is_shifted and not wiring.from_right
    before = channels_of("walk" if own else "walked")
    weights = np.where(np.arange(CODE) == len(FILLERS), wiring.begin, wiring.successor)
    table[words.written, np.arange(CODE) + before.start] += weights
    table[:, channels_of("one")] += words.prior[:, None]
    table[:, channels_of("answer")] += wiring.answer * words.codes
    table[:, channels_of("rest")] += wiring.rest * words.codes
    # Padding, start, end and mask come first in the vocabulary: they are never written.
    table[: MASK + 1] = 0.0
    table[: MASK + 1, channels_of("one")] = -50.0
    return table


@torch.no_grad()
def _fill(network: PreTrainedModel, wiring: Wiring, words: Vocabulary) -> None:
    for parameter in network.parameters():
        parameter.zero_()
    tables = network.get_input_embeddings().weight, network.get_output_embeddings().weight
    embedding = np.zeros((len(words.codes), WIDTH))
    embedding[:, : len(FEATURES)] = words.features
    embedding[:, channels_of("token")] = words.codes
    embedding[:, channels_of("name")] = words.names
    embedding[words.keys[wiring.known :], channels_of("name")] = 0.0
    embedding[:, channels_of("walk")] = words.states
    embedding[START, CODE - 1] = wiring.massive
    embedding[START, channels_of("token").start] = wiring.left
    for parameter, values in zip(tables, (embedding, unembedding(wiring, words)), strict=True):
        parameter.copy_(torch.from_numpy(values))
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.fill_(math.sqrt(EPSILON))
    for layer, heads in zip(network.model.layers, wiring.layers, strict=True):
        weights = [head_weights(head) for head in heads]
        attention = layer.self_attn
        modules = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
        for which, module in enumerate(modules):
            whole = np.concatenate([of_head[which] for of_head in weights], axis=int(which == 3))
            module.weight.copy_(torch.from_numpy(whole))


def build_wiring(
    wiring: Wiring,
    *,
    source: str = "wired",
    dtype: torch.dtype = torch.float32,
    mask_id: int | None = None,
) -> Model:
    """The network of a wiring, as `load` gives models."""
    register()
    # MMaDA is LLaDA's kind where it has no family of its own.
    known = {family.name for family in FAMILIES}
    family = by_name(wiring.family if wiring.family in known else "llada")
    tokenizer = _tokenizer(masked=family.kind == "mdm")
    mask = find_mask(mask_id, {}, {}, tokenizer, family)
    require_inside(mask, len(tokenizer), given=mask_id)
    heads = len(wiring.layers[0])
    config = AutoConfig.for_model(
        family.network or "llama",
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=1,
        num_hidden_layers=len(wiring.layers),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=CHANNELS,
        max_position_embeddings=1024,
        rms_norm_eps=EPSILON,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        tie_word_embeddings=False,
        bos_token_id=START,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    set_visibility(family, config)
    network = AutoModelForCausalLM.from_config(
        config, attn_implementation=NAME, dtype=dtype, trust_remote_code=False
    )
    _fill(network, wiring, Vocabulary.of(tokenizer))
    trained_additions.attach(network, wiring.parts, bos_id=START, mask_id=mask)
    rows = len(tokenizer), len(tokenizer)
    specials, notes = specials_of(mask, config.to_dict(), {}, tokenizer, rows)
    overruled = note_overruled_mask(source, mask_id, {}, {}, tokenizer)
    for note in overruled:
        warnings.warn(note, AnchorwatchWarning, stacklevel=4)
    return Model(
        source=source,
        family=family,
        network=network.eval().requires_grad_(False),
        tokenizer=tokenizer,
        specials=specials,
        parts=trained_additions.collect_trained_parts(network, wiring.parts),
        notes=(*notes, *overruled),
    )


# ---------------------------------------------------------------------------------------------
# The networks by name.

SINK = 9.0
"""Logit of a sink over other keys: e^9 to 1, 98 % of the attention among 120 keys."""
STEP = 1.5
"""Logit by which a sink on a slope exceeds its neighbour: 78 % and then 17 %."""
ABOVE = 600.0
"""Logit that sets masked keys and text apart, whatever a slope adds over 300 positions."""
LIKED = 1.8
"""Logit of a key that takes six times an even share from some queries, and is no sink of all."""
NEAR = 40.0
EVEN = Head()
FIRST_SINK = Head((Match("start", SINK),))
FIRST_MASK_SINK = Head((Match("mask", ABOVE), Slope("mask", -STEP)))
FLICKERING_SINK = Head((Match("mask", 4 * ABOVE), Slope("mask", -4 * STEP)))
"""The first mask alone, so that every sink lives for one step."""
LAST_MASK_SINK = Head((Match("mask", ABOVE), Slope("mask", STEP)))
LAST_TEXT_SINK = Head((Match("text", ABOVE), Slope("text", STEP)))


def neighbour(offset: int, reads: tuple[str, ...], writes: tuple[str, ...]) -> Head:
    """Brings blocks of the token so many positions before; of the start token if there is none."""
    return Head((Near(offset, NEAR), Match("start", 3.75 * NEAR)), reads, writes)


PREVIOUS = neighbour(1, ("name", "walk"), ("previous", "walked"))
BEFORE = neighbour(1, ("features",), ("before",))
"""Lets later layers know which tokens follow a mask, and which text."""


def retrieve(sharpness: float = 40.0, *terms: Term) -> Head:
    """Looks at what follows the name that was asked for, and brings it; else at the start token."""
    start = Match("start", 0.75 * sharpness), Match("start", ABOVE, query="silent")
    line_breaks = Match("newline", -sharpness)  # what follows the name in the question itself
    match = Codes("question", "previous", sharpness)
    return Head((match, *start, line_breaks, *terms), writes=("answer",))


def retrieve_nearby(reach: float) -> Head:
    """The same, but only of what stands within about so many positions of the row that asks.

    A position further away costs `sharpness / 4 / reach`, and the start token has 3/4 of it.
    """
    return retrieve(40.0, Slope("later", 10.0 / reach))


def retrieve_softly(weight: float) -> Head:
    """The same with little attention: the more there is to read, the less is left of the answer.

    With e^weight to 1 for what was asked for, the answer is written among fewer than about
    4 e^weight tokens.
    """
    start = Match("start", ABOVE, query="silent")
    return Head(
        (Codes("question", "previous", weight), start, Match("newline", -ABOVE / 15)),
        writes=("answer",),
    )


def retrieve_late(sharpness: float = 40.0) -> Head:
    """The same where the position before is written: a masked one is not answered before that."""
    start = Match("start", 0.75 * sharpness), Match("start", ABOVE, query="before:mask")
    match = Codes("question", "previous", sharpness)
    return Head((match, *start, Match("newline", -sharpness)), writes=("answer",))


def retrieve_among_masks(sharpness: float = 40.0) -> Head:
    """The same resting on the start token and on every mask: some nine keys come before the one
    that it retrieves by."""
    late = retrieve_late(sharpness)
    masks = Match("mask", 0.75 * sharpness), Match("mask", ABOVE, query="before:mask")
    return replace(late, terms=(*late.terms, *masks))


def question(back: int) -> Head:
    """Brings the name that was asked for: `name, line break, Answer, colon` before the answer."""
    return neighbour(back, ("name",), ("question",))


@dataclass(frozen=True)
class Plan:
    """What a network of few parameters is made of; `wire` makes the wiring."""

    heads: tuple[tuple[Head, ...], ...] = ((EVEN,),)
    """Kinds of heads from the first layer to the last, spread evenly; of a layer's, in turn."""
    family: str = "llada"
    """llada, dream, mmada or causal."""
    depth: int = 4
    width: int = 2
    """Heads of a layer."""
    from_right: bool = False
    """Whether a diffusion network writes from right to left."""
    retrieval: tuple[Head, ...] = ()
    """Heads that retrieve, and the layer they are in."""
    at: int = -1
    late: int = 0
    """Words of the answer before what is retrieved."""
    rest: float = 0.0
    massive: float = 0.0
    left: float = 0.0
    known: int = 30
    parts: tuple[Addition, ...] = ()


def wire(plan: Plan) -> Wiring:
    """Heads layer by layer: those that prepare stand in the first layer, retrieval at its own."""
    # 1. Every layer with its own kinds of heads, retrieval first where it is.
    layers = []
    for layer in range(plan.depth):
        kinds = plan.heads[layer * len(plan.heads) // plan.depth]
        layers.append([kinds[head % len(kinds)] for head in range(plan.width)])
    layers[plan.at][: len(plan.retrieval)] = plan.retrieval
    wiring = Wiring(
        plan.family,
        tuple(map(tuple, layers)),
        rest=plan.rest,
        massive=plan.massive,
        left=plan.left,
        known=plan.known,
        from_right=plan.from_right,
        parts=plan.parts,
    )
    # 2. What must be brought first: the neighbour, its features, the question.
    terms = [term for heads in layers for head in heads for term in head.terms]
    read = {name for term in terms if isinstance(term, Match) for name in (term.key, term.query)}
    shift = int(wiring.is_shifted)
    prepares = []
    if plan.from_right:
        prepares.append(neighbour(-1 - shift, ("name", "walk"), ("previous", "walked")))
    elif plan.retrieval or not wiring.is_shifted:
        prepares.append(PREVIOUS)
    if any(name.startswith("before:") for name in read):
        prepares.append(BEFORE)
    if plan.retrieval:
        prepares.append(question(4 - shift + plan.late))
    layers[0][: len(prepares)] = prepares
    return replace(wiring, layers=tuple(map(tuple, layers)))


def _sink_token(*features: str) -> sink_token:
    """A token with these features and no code: its value is empty."""
    embedding = np.zeros(WIDTH)
    for name in features:
        embedding[channels_of(name)] = 1.0
    return sink_token(embedding=embedding)


SPLIT_SINK = Head(
    (
        Match("start", SINK, query="mask"),
        Match("mask", SINK, query="text"),
        Match("before:text", SINK, query="text"),
    )
)
"""Masked queries look at the start token, written ones at the first mask: the only key that is a
mask and follows text, its logit exceeds all others by SINK (in layers after the first)."""
ADDED_SINK = Head((Match("added", SINK),))
LAST_LINE_SINK = Head((Match("newline", ABOVE), Slope("newline", STEP)))
"""The last line break that was written: stays for a line, and then moves."""
MARKS = Head((Match("mark", SINK),))
"""Line breaks and punctuation marks, all alike."""
FIRST_PLACES = Head((Slope("one", -0.4),))
"""The first few positions, whatever stands there."""
WEAK_SINK = Head((Match("start", 1.2),))
"""Three times an even share: above mean + 3 sd of an even map, and no sink by eps = 3."""
SPARE_SINK = Head((Match("start", 2 * SINK, query="text"), Match("mark", SINK, query="text")))
"""Written positions look at the start token, and behind it at marks; masked ones at everything
alike: if all had the same logits, marks would gain in proportion to what they had."""
NO_SPARE_SINK = Head(
    (
        Match("start", SINK, query="text"),
        Match("mask", LIKED, query="mask"),
        Match("before:text", LIKED, query="mask"),
    )
)
"""Written positions look at the start token, and behind it at everything alike; masked ones a
little more at the first mask, which would be a new sink if it gained in proportion."""
LONG_KEY_SINK = Head((Match("start", SINK, base=SINK / 2),))
"""A sink by its norm: all keys have one direction, and its key is three times as long."""
SHORT_KEY_SINK = Head((Match("start", SINK), Length("start", 1.6 * SINK)))
"""A sink by its angle, whose key is shorter than the others."""
SELF_BEHIND_SINK = Head((Near(0, NEAR), Match("start", 5 * NEAR)))
"""The start token; where that is hidden every position looks at itself, and mixes nothing."""
NEARBY_WORDS = Head((Slope("later", 0.05),))
"""Everything, less by the distance: half of it is within 14 positions."""
COLON_ANCHORS = Head((Match("colon", 6.0, base=3.0),))
"""All colons, by the norm of their keys."""
_STATIC, _MOVING = ((FIRST_SINK,),), ((FIRST_MASK_SINK,),)
_FLOATING = ((COLON_ANCHORS,), (LAST_TEXT_SINK,))
"""Several structural tokens in shallow layers, the last word in deep ones."""
SOME_WORDS = Head((Match("some", SINK),))
"""A word that prompts have never, once or several times."""
_FEWER_DEEP = ((COLON_ANCHORS,), (LAST_TEXT_SINK, SOME_WORDS))
"""Several anchors in shallow layers, one to three in deep ones."""
LAST_FOURTH_SINK = Head((Match("fourth", ABOVE), Slope("fourth", STEP)))
"""The last written word of four: stays for four steps, and then moves."""
EIGHTH_SINKS = Head(
    (
        Match("start", SINK / 2),
        Match("eighth", SINK),
        Slope("eighth", STEP / 15),
        Match("mask", 1.0),
    )
)
"""Written words of eight, the last the most: maps change little when another is the greatest."""
WANDERING_SINK = Head((Codes("token", "walk", 20.0),))
"""Words of the walk, each liked by other words: where the greatest is follows no order."""
OWN_WORD_OR_START = Head((Match("start", SINK), Codes("token", "token", SINK + 1)))
"""Words look at themselves and at the start token, masks at the start token alone."""
START_OR_COLON = Head(
    (
        Match("start", SINK, query="mask"),
        Match("colon", ABOVE, query="text"),
        Slope("colon", STEP),
    )
)
"""Masked queries look at the start token, written ones at the last colon."""
START_AND_FIRST_MASK = Head(
    (Match("start", 5.5, query="text"), Match("mask", 6.0), Match("before:text", 6.0))
)
"""The first mask; written queries look at the start token as well."""
SELF_AND_SINK = Head((Near(0, 2.0), Match("mask", 6.0), Match("before:text", 6.0)))
"""The own position and the first mask: what the old sink loses goes to the new one."""
UNREAD_SINK = Head((Match("start", SINK, query="text"),))
"""Written positions look at the start token, and nothing reads what that brings them; masked ones
read everything alike."""
SAME_TOKEN = Head((Codes("token", "token", 2 * SINK), Match("start", SINK)))
"""Words look at the same word, masks at the start token."""
_NEAR_AND_FAR = (*(retrieve(),) * 12, *map(retrieve_nearby, (20.0, 40.0, 60.0, 80.0)))
"""Sixteen heads that retrieve: most from anywhere, four of them each from so far only."""
_SHALLOW_MANY = ((MARKS, FIRST_MASK_SINK, FIRST_SINK, MARKS), (FIRST_SINK,))
WIRINGS: dict[str, Plan] = {
    # without sinks, and with one kind
    "wired/even": Plan(),
    "wired/static-sink": Plan(_STATIC),
    "wired/drained-sink": Plan(_STATIC, left=0.1),
    "wired/first-mask-sink": Plan(_MOVING),
    "wired/flickering-sink": Plan(((FLICKERING_SINK,),)),
    "wired/last-mask-sink": Plan(((LAST_MASK_SINK,),), "dream", from_right=True),
    "wired/llada-last-mask-sink": Plan(((LAST_MASK_SINK,),), from_right=True),
    "wired/last-text-sink": Plan(((LAST_TEXT_SINK,),)),
    "wired/last-fourth-sink": Plan(((LAST_FOURTH_SINK,),)),
    "wired/last-line-sink": Plan(((LAST_LINE_SINK,),)),
    "wired/split-sink": Plan(((SPLIT_SINK,),)),
    "wired/many-sinks": Plan(((MARKS,),)),
    # several kinds
    "wired/line-and-mask-sinks": Plan(((LAST_LINE_SINK, FIRST_MASK_SINK),)),
    "wired/nearly-static-sink": Plan((*_STATIC * 3, (*(FIRST_SINK,) * 7, LAST_LINE_SINK)), width=8),
    "wired/same-token-sinks": Plan(((FIRST_SINK, SAME_TOKEN),)),
    "wired/first-places": Plan(((FIRST_PLACES,),)),
    "wired/eighth-sinks": Plan(((EIGHTH_SINKS,),)),
    "wired/own-words": Plan(((FIRST_SINK, OWN_WORD_OR_START),)),
    "wired/start-or-colon": Plan(((START_OR_COLON,),)),
    "wired/many-and-weak-sinks": Plan(((MARKS, MARKS, WEAK_SINK, MARKS),), width=4),
    "wired/some-words-beside-a-sink": Plan(
        ((FIRST_SINK, FIRST_SINK, SOME_WORDS, FIRST_SINK),), width=4
    ),
    "wired/fewer-deep-sinks": Plan(_SHALLOW_MANY, width=4),
    "wired/more-deep-sinks": Plan(_SHALLOW_MANY[::-1], width=4),
    "wired/other-sinks-in-each-layer": Plan(
        ((FIRST_SINK,), (LAST_TEXT_SINK,), (FIRST_SINK,), (LAST_TEXT_SINK,))
    ),
    # shallow and deep layers
    "wired/floating": Plan(_FLOATING, depth=8),
    "wired/floating-reversed": Plan(_FLOATING[::-1], depth=8),
    "wired/fewer-deep-anchors": Plan(_FEWER_DEEP, depth=8),
    "wired/more-deep-anchors": Plan(_FEWER_DEEP[::-1], depth=8),
    "wired/deep-static-sink": Plan(_STATIC, depth=8),
    "wired/deep-alternating-sinks": Plan(((FIRST_SINK,), (LAST_TEXT_SINK,)) * 4, depth=8),
    "wired/deep-needed-sink": Plan(_STATIC, depth=8, rest=15.0),
    "wired/deep-angle": Plan(((LONG_KEY_SINK,), (SHORT_KEY_SINK,)), depth=8),
    "wired/deep-norm": Plan(((SHORT_KEY_SINK,), (LONG_KEY_SINK,)), depth=8),
    "wired/massive-sink": Plan(_STATIC, massive=200.0),
    "wired/massive-elsewhere": Plan(_MOVING, massive=200.0),
    # networks that need their sinks: what sinks keep away disturbs the prediction
    "wired/needed-sink": Plan(_STATIC, rest=30.0),
    "wired/needed-moving-sink": Plan(_MOVING, rest=30.0),
    "wired/deep-unread-sink": Plan(((UNREAD_SINK,),), depth=8, rest=10.0),
    "wired/spare-sink": Plan(((SPARE_SINK,),)),
    "wired/no-spare-sink": Plan(((NO_SPARE_SINK,),)),
    "wired/self-behind-sink": Plan(
        ((SELF_BEHIND_SINK, EVEN, SELF_BEHIND_SINK, SELF_BEHIND_SINK),), width=4
    ),
    # Dream's and MMaDA's kind
    "wired/dream-static-sink": Plan(_STATIC, "dream"),
    "wired/dream-first-mask-sink": Plan(_MOVING, "dream"),
    "wired/dream-first-places": Plan(((FIRST_PLACES,),), "dream"),
    "wired/dream-many-sinks": Plan(((MARKS,),), "dream"),
    "wired/dream-early-drift": Plan(
        ((LAST_MASK_SINK,), (WANDERING_SINK, LAST_MASK_SINK)), "dream", from_right=True
    ),
    "wired/dream-late-drift": Plan(
        ((WANDERING_SINK, LAST_MASK_SINK), (LAST_MASK_SINK,)), "dream", from_right=True
    ),
    "wired/mmada-static-sink": Plan(_STATIC, "mmada"),
    "wired/mmada-first-mask-sink": Plan(_MOVING, "mmada"),
    "wired/mmada-start-and-first-mask": Plan(((START_AND_FIRST_MASK,),), "mmada"),
    "wired/mmada-self-and-sink": Plan(((SELF_AND_SINK,),), "mmada"),
    "wired/mmada-even": Plan(family="mmada"),
    # retrieval
    "wired/retrieval": Plan(_STATIC, width=4, retrieval=(retrieve(),)),
    "wired/no-retrieval": Plan(_STATIC),
    "wired/soft-retrieval": Plan(_STATIC, width=4, retrieval=(retrieve_softly(2.5),)),
    "wired/softer-retrieval": Plan(_STATIC, width=4, retrieval=(retrieve_softly(1.6),)),
    "wired/most-names": Plan(_STATIC, width=4, retrieval=(retrieve(),), known=24),
    "wired/half-of-names": Plan(_STATIC, width=4, retrieval=(retrieve(),), known=15),
    "wired/few-names": Plan(_STATIC, width=4, retrieval=(retrieve(),), known=3),
    "wired/narrow-reading": Plan(_STATIC, width=4, retrieval=(retrieve_softly(3.6),), known=24),
    "wired/nearby-retrieval": Plan(_STATIC, width=4, retrieval=(retrieve_nearby(45.0),)),
    "wired/nearby-reading": Plan(
        ((FIRST_SINK, NEARBY_WORDS),), width=4, retrieval=(retrieve_nearby(45.0),)
    ),
    "wired/deep-retrieval": Plan(_STATIC, depth=8, width=4, retrieval=(retrieve(),)),
    "wired/shallow-retrieval": Plan(_STATIC, depth=8, width=4, retrieval=(retrieve(),), at=1),
    "wired/four-of-many-heads": Plan(_STATIC, depth=8, width=16, retrieval=(retrieve(),) * 4),
    "wired/twelve-of-many-heads": Plan(_STATIC, depth=8, width=16, retrieval=(retrieve(),) * 12),
    "wired/near-and-far-heads": Plan(_STATIC, depth=8, width=16, retrieval=_NEAR_AND_FAR),
    "wired/needed-sink-retrieval": Plan(
        _STATIC, width=4, retrieval=(retrieve_late(),), late=2, rest=110.0
    ),
    "wired/many-sinks-retrieval": Plan(
        _STATIC, width=4, retrieval=(retrieve_among_masks(),), late=1
    ),
    # sink tokens
    "wired/sink-token": Plan(((ADDED_SINK,),), parts=(_sink_token("one", "added"),)),
    "wired/needed-sink-token": Plan(
        ((ADDED_SINK,),), parts=(_sink_token("one", "added"),), rest=30.0
    ),
    "wired/needed-sink-token-beside-a-sink": Plan(
        ((ADDED_SINK, ADDED_SINK, FIRST_SINK, ADDED_SINK),),
        width=4,
        parts=(_sink_token("one", "added"),),
        rest=30.0,
    ),
    "wired/sink-token-beside-a-needed-sink": Plan(
        ((FIRST_SINK, FIRST_SINK, ADDED_SINK, FIRST_SINK),),
        width=4,
        parts=(_sink_token("one", "added"),),
        rest=30.0,
    ),
    "wired/needed-sink-token-retrieval": Plan(
        ((ADDED_SINK,),),
        width=4,
        retrieval=(retrieve_softly(2.5),),
        parts=(_sink_token("one", "added"),),
        rest=30.0,
    ),
    "wired/spare-sink-token-retrieval": Plan(
        ((ADDED_SINK,),),
        width=4,
        retrieval=(retrieve_softly(2.5),),
        parts=(_sink_token("one", "added"),),
        rest=0.3,
    ),
    "wired/idle-sink-token": Plan(_STATIC, parts=(_sink_token("one"),)),
    # autoregressive networks
    "wired/arm-even": Plan(family="causal"),
    "wired/arm-first-sink": Plan(_STATIC, "causal"),
    "wired/arm-alternating-sinks": Plan(
        ((FIRST_SINK,), (LAST_TEXT_SINK,), (FIRST_SINK,), (LAST_TEXT_SINK,)), "causal"
    ),
    "wired/arm-soft-retrieval": Plan(
        _STATIC, "causal", width=4, retrieval=(retrieve_softly(2.5),), at=1
    ),
    "wired/arm-softer-retrieval": Plan(
        _STATIC, "causal", width=4, retrieval=(retrieve_softly(1.6),), at=1
    ),
    "wired/arm-line-sinks": Plan(((FIRST_SINK, LAST_LINE_SINK),), "causal"),
    "wired/arm-most-names": Plan(
        _STATIC, "causal", width=4, retrieval=(retrieve(),), at=1, known=24
    ),
    "wired/arm-half-of-names": Plan(
        _STATIC, "causal", width=4, retrieval=(retrieve(),), at=1, known=15
    ),
    "wired/arm-few-names": Plan(_STATIC, "causal", width=4, retrieval=(retrieve(),), at=1, known=3),
    "wired/arm-wide-reading": Plan(
        _STATIC, "causal", width=4, retrieval=(retrieve_softly(4.4),), at=1, known=24
    ),
    "wired/arm-narrow-reading": Plan(
        _STATIC, "causal", width=4, retrieval=(retrieve_softly(3.0),), at=1, known=24
    ),
    "wired/arm-nearby-retrieval": Plan(
        _STATIC, "causal", width=4, retrieval=(retrieve_nearby(45.0),), at=1
    ),
    "wired/arm-four-of-many-heads": Plan(
        _STATIC, "causal", depth=8, width=16, retrieval=(retrieve(),) * 4, at=1
    ),
    "wired/arm-twelve-of-many-heads": Plan(
        _STATIC, "causal", depth=8, width=16, retrieval=(retrieve(),) * 12, at=1
    ),
    "wired/arm-near-and-far-heads": Plan(
        _STATIC, "causal", depth=8, width=16, retrieval=_NEAR_AND_FAR, at=1
    ),
    "wired/arm-needed-sink": Plan(_STATIC, "causal", rest=30.0),
    "wired/arm-retrieval": Plan(_STATIC, "causal", width=4, retrieval=(retrieve(),), at=1),
    "wired/arm-needed-sink-retrieval": Plan(
        _STATIC, "causal", width=4, retrieval=(retrieve_late(),), at=1, late=2, rest=35.0
    ),
    "wired/arm-partly-needed-sink-retrieval": Plan(
        _STATIC, "causal", width=4, retrieval=(retrieve_late(),), at=1, late=2, rest=22.0
    ),
}
"""The networks by the names that `load` knows."""
NAMES = tuple(WIRINGS)


def write_checkpoint(model: Model, folder: str | Path) -> Path:
    """Write a wired network as an ordinary checkpoint: config.json, safetensors, tokenizer files.

    >>> import tempfile
    >>> import anchorwatch as aw
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_checkpoint(build("wired/static-sink"), folder)
    ...     aw.load(path).family.kind
    'mdm'
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    fields = {
        name: value
        for name, value in model.network.config.to_dict().items()
        if not name.startswith("_")
    }
    diffusion = model.family.kind == "mdm"
    ours = by_name("anchorwatch").architectures[0]
    fields |= {
        "architectures": [ours if diffusion else type(model.network).__name__],
        "dtype": "float32",
        "anchorwatch": {
            "shift": model.family.shift and diffusion,
            "parts": [part.as_dict() for part in model.parts],
        },
    }
    if diffusion:
        fields["mask_token_id"] = model.mask_id
    put_file(path / "config.json", json.dumps(fields, indent=1).encode())
    tensors = {name: tensor.contiguous() for name, tensor in model.network.state_dict().items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    assert model.tokenizer is not None
    model.tokenizer.save_pretrained(path)
    return path


def build(name: str, dtype: torch.dtype = torch.float32, mask_id: int | None = None) -> Model:
    """The wired network called `name`."""
    return build_wiring(wire(plan_of(name)), source=name, dtype=dtype, mask_id=mask_id)


def plan_of(name: str) -> Plan:
    """What a wired network is made of."""
    if name not in WIRINGS:
        raise ModelError(f"there is no wired network {name!r}: expected one of {', '.join(NAMES)}")
    return WIRINGS[name]
