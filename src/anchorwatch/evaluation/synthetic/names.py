"""Made-up names and values, each of which belongs to one split for ever.

A name is built of syllables (consonant, vowel, perhaps l, n or r) of which both splits use the
same 200; which split it belongs to is decided by its first four letters. So a held-out name is
written with known pieces, and never stands in training text, not even inside a longer name. Trades,
books and ships are pairs of English words, years are numbers: there the pair or the number decides.

>>> split_of("Tarbo") == split_of("Tarbondil")
True
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import blake2b
from itertools import product

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic.draws import Draw

SPLITS = ("train", "held-out")
KINDS = ("person", "town", "land", "book", "ship", "trade", "year")
HELD_OUT = 0.2
"""Share of all names and values that is held out."""

_ONSETS, _VOWELS, _CODAS = "bdfgkmptvz", "aeiou", ("", "l", "n", "r")
_SYLLABLES = tuple("".join(parts) for parts in product(_ONSETS, _VOWELS, _CODAS))
_ENDINGS = {
    "town": ("wick", "stead", "haven", "ford", "ness", "holm"),
    "land": ("land", "mark", "shire"),
}
# How English words begin, and what nobody wants to be called.
_UNWANTED = frozenset(
    """
    bako bang bank bare base bega bego bend bene beto bile bimb bind bird bone bonk bore born bull
    burd bure burg burn dago dama dang dare data date dean dear deba debu deci deco dede defe dema
    dena deni depe deri dete deve devi digi dild dile dine dire dive divi dona done dore dura duri
    faga fago fake fall fami fara fata fate fede fema fina find fine fire five fora fore fork form
    fort fuka fune funk furt futu garb gard gate gene gera germ geta give gold gole gone gook gove
    guid kill kind king kunt made mail main make mali mana mang mani marg mari mark mart mate mede
    medi mega melt meme mend ment meta mete mind mine mini mobi mode modi mole moni more move mult
    muta papa para park part pate pede pene pent pere peri perm pete pile pimp pink pola poli pope
    port pota pote pove pule pune punk pure purp puta take tale talk tang tank tape tard tele temp
    tend tent terb term time tire titi toda toge toke told tone tori tota tube tuni turb turk turn
    vagi vari vene vide vita vote vulv zero
    """.split()
)
_TRADES = (
    "barrel bell boot bread candle chart cheese clock cloth fish glass glove harp hat herb knife "
    "lamp leather mirror needle net paper pearl rope saddle salt silver stone timber wool".split(),
    "carver cutter dealer finder hauler keeper maker mender painter seller sorter turner".split(),
)
_BOOKS = (
    "Bitter Broken Crooked Distant Empty Frozen Gentle Hidden Hollow Lonely Lost Naked Pale "
    "Patient Quiet Restless Sleeping Stolen Wandering Winter".split(),
    "Bridge Candle Carpet Door Feast Garden Harvest Journey Ladder Lantern Letter Mirror Mountain "
    "Orchard Promise River Shadow Stairs Thread Window".split(),
)
_SHIPS = (
    "Amber Black Blue Brave Bright Bronze Copper Crimson Golden Grey Iron Ivory Jade Proud Red "
    "Scarlet Silver Swift White Wild".split(),
    "Albatross Badger Cormorant Dolphin Eagle Falcon Fox Gull Heron Lion Otter Owl Petrel Raven "
    "Seal Stag Swan Tern Whale Wolf".split(),
)
_FIRST_YEAR, _LAST_YEAR = 1200, 1899
_NAME = re.compile(
    r"\b[BDFGKMPTVZ][aeiou][lnr]?(?:[bdfgkmptvz][aeiou][lnr]?){1,2}(?:"
    + "|".join(ending for endings in _ENDINGS.values() for ending in endings)
    + r")?\b"
)
_BREAKS = re.compile(  # but not inside haven and stead
    r"(?<=[a-z])(?<!ha)(?<!s)(?=[bdfgkmptvz][aeiou]|wick|stead|shire|haven|holm|ness|land)"
)
_LONG, _SURNAME = 0.3, 0.25  # shares of the people with three syllables, with two names


@cache
def split_of(name: str) -> str:
    """The split a name or value belongs to."""
    key = name if " " in name or name.isdigit() else name[:4]
    number = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
    return SPLITS[number < HELD_OUT * 2**64]


def draw_name(kind: str, split: str, draw: Draw, like: str = "") -> str:
    """A name or value of a kind. `like` is a person whose first letters or first name it has."""
    if kind != "person":
        return draw.pick(_pool(kind, split))
    stems = _pool("stem", split)
    if not like:
        first = draw.pick(stems)
        if draw.chance(_LONG):
            first += draw.pick(_SYLLABLES)
        return f"{first} {draw.pick(stems)}" if draw.chance(_SURNAME) else first
    first, _, surname = like.partition(" ")
    if surname:
        return f"{first} {draw.pick(stems)}"
    return draw.pick(_alike(split)[first[:3]])


def likeliest(kind: str, split: str) -> float:
    """How often the best guess at a name or value is right, when nothing is known but its kind."""
    if kind == "person":
        return (1 - _LONG) * (1 - _SURNAME) / len(_pool("stem", split))
    return 1 / len(_pool(kind, split))


def fragments(text: str) -> list[str]:
    """The text cut at the syllables of its names.

    A tokenizer that learns from fragments learns syllables, never a whole name, so that unseen
    names cost as many tokens as seen ones.

    >>> fragments("He lives in Tarbowick.")
    ['He lives in Tar', 'bo', 'wick.']
    """
    return _NAME.sub(lambda match: _BREAKS.sub("\0", match[0]), text).split("\0")


def require_split(split: str) -> None:
    """Refuse what is no split."""
    if split not in SPLITS:
        raise SpecError(f"split={split!r} is unknown: expected {' or '.join(map(repr, SPLITS))}")


@cache
def _pool(kind: str, split: str) -> tuple[str, ...]:
    """Every name of a kind and split, in a fixed order; for people, the two-syllable stems."""
    if kind == "stem":
        pairs = (first.capitalize() + then for first, then in product(_SYLLABLES, _SYLLABLES))
        names = (name for name in pairs if name[:4].lower() not in _UNWANTED)
    elif kind in _ENDINGS:
        stems = _pool("stem", split)
        return tuple(stem + ending for stem, ending in product(stems, _ENDINGS[kind]))
    elif kind == "year":
        names = (str(year) for year in range(_FIRST_YEAR, _LAST_YEAR + 1))
    else:
        words = {"trade": _TRADES, "book": _BOOKS, "ship": _SHIPS}[kind]
        names = (f"{first} {second}" for first, second in product(*words))
    return tuple(name for name in names if split_of(name) == split)


@cache
def _alike(split: str) -> dict[str, list[str]]:
    """Stems by their first three letters."""
    stems: dict[str, list[str]] = {}
    for stem in _pool("stem", split):
        stems.setdefault(stem[:3], []).append(stem)
    return stems
