"""Contexts: each name means one thing, chance comes from the item alone, gold stays gold."""

import dataclasses
import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorwatch.errors import ItemError, SpecError
from anchorwatch.evaluation.contexts import LAYOUTS, Context, context, contexts, gold_passages
from anchorwatch.evaluation.scores import holds
from anchorwatch.evaluation.synthetic import Item, Passage
from anchorwatch.evaluation.tasks import task
from anchorwatch.training.card_measures import CONTEXTS, SEED

ONE = list(islice(task("synthetic/one-hop"), 40))
TWO = list(islice(task("synthetic/two-hop"), 40))
items = st.sampled_from(ONE)
chains = st.sampled_from(TWO)
kinds = st.sampled_from(["", "hard", "counterfactual"])
counts = st.integers(0, 4)


def golds(item):
    return [place for place, passage in enumerate(item.passages, start=1) if passage.gold]


NAMES = [
    "closed",
    "open",
    "open5",
    "gold",
    "gold+4",
    "gold+4hard",
    "gold+2counterfactual",
    "gold@2/5",
    "gold@1/3hard",
    "irrelevant3/5",
    "adjacent+4",
    "far+4hard",
    "reversed+4",
    "far-reversed+2",
    "open~shuffle",
    "open5~shuffle3",
    "gold~typos10",
    "gold+1~paraphrase",
    "gold~masks32",
    "gold+4hard~shuffle~typos5~paraphrase~masks16",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_read_as_it_is_said(name):
    assert context(name).name == str(context(name)) == name
    assert context(context(name)) == context(name)


def test_other_spellings():
    assert context("shuffle") == context("open~shuffle")
    assert context("shuffle5") == context("open5~shuffle")
    assert context("gold+0") == context("gold")
    assert context("gold~masks8~typos3").name == "gold~typos3~masks8"
    assert contexts("closed, gold+4") == (context("closed"), context("gold+4"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("golden", "no context is called 'golden': expected closed, open5, gold"),
        ("gold+", "no context is called"),
        ("gold+4easy", "no context is called"),
        ("gold@0/5", "places run from 1 to 5"),
        ("gold@6/5", "places run from 1 to 5"),
        ("irrelevant5/5", "say irrelevant1/5"),
        ("irrelevant0/5", "say irrelevant1/5"),
        ("open0", "say closed"),
        ("gold~noise", "~noise is unknown: expected closed"),
        ("gold~typos200", "say typos100 at most"),
        ("adjacent", "no context is called"),
    ],
)
def test_names_that_mean_nothing(name, says):
    with pytest.raises(SpecError, match=says):
        context(name)


def test_lists_of_names():
    with pytest.raises(SpecError, match="the context gold is named twice"):
        contexts(["gold", "closed", "gold+0"])
    with pytest.raises(SpecError, match="no context is named"):
        contexts("")


@given(items, counts, kinds, st.integers(0, 3))
def test_gold_among_distractors(item, count, kind, seed):
    shown = context(f"gold+{count}{kind}").apply(item, seed=seed)
    assert len(shown.passages) == count + 1 and len(golds(shown)) == 1
    assert {p.kind for p in shown.passages} <= {"gold", kind or "random"}
    assert len({p.text for p in shown.passages}) == count + 1
    assert (shown.question, shown.answers) == (item.question, item.answers)


@given(items, kinds, st.integers(0, 3))
def test_fewer_distractors_are_among_more(item, kind, seed):
    def others(count):
        shown = context(f"gold+{count}{kind}").apply(item, seed=seed)
        return [p.text for p in shown.passages if not p.gold]

    assert others(4)[:2] == others(2) and others(2)[:1] == others(1)
    at_three = context(f"gold@3/4{kind}").apply(item, seed=seed)
    assert [p.text for p in at_three.passages if not p.gold] == others(4)[:3]


@given(items, st.integers(1, 5))
def test_the_sweep_moves_nothing_but_the_gold(item, place):
    shown = context(f"gold@{place}/5").apply(item)
    assert golds(shown) == [place]
    first = context("gold@1/5").apply(item)
    assert [p for p in shown.passages if not p.gold] == list(first.passages[1:])


def test_gold_is_placed_anywhere_alike():
    places = [
        golds(context("gold+1").apply(item, seed=seed))[0] for item in ONE for seed in range(20)
    ]
    assert 0.4 < sum(place == 1 for place in places) / len(places) < 0.6


@given(items)
def test_irrelevant_share(item):
    shown = context("irrelevant3/5").apply(item)
    assert sorted(p.kind for p in shown.passages) == ["gold", "hard"] + ["random"] * 3


@given(items, st.integers(0, 3))
def test_a_random_and_a_hard_distractor_are_a_third_irrelevant(item, seed):
    """What the lab's cards call gold+2; docs/specimens.md prints the command."""
    shown = context("irrelevant1/3").apply(item, seed=seed)
    assert sorted(p.kind for p in shown.passages) == ["gold", "hard", "random"]


def test_the_seed_of_the_cards_asks_the_questions_of_the_cards():
    world, _ = CONTEXTS["gold+2"]
    for index, item in enumerate(islice(task("synthetic/one-hop", seed=SEED), 200)):
        assert (item.question, item.answers) == (world[index].question, world[index].answers)


@given(chains, st.sampled_from(LAYOUTS), st.integers(0, 5))
def test_layouts_of_two_hops(item, layout, count):
    shown = context(f"{layout}+{count}").apply(item)
    hops = [p.hop for p in shown.passages]
    first, second = hops.index(1), hops.index(2)
    assert (first < second) == ("reversed" not in layout)
    apart = abs(second - first)
    assert apart == (count + 1 if layout.startswith("far") else 1)
    assert len(hops) == count + 2
    assert abs((first + second) - (count + 1)) <= 1, "the same mean place in all layouts"
    straight = context(f"adjacent+{count}").apply(item)
    assert {p.text for p in shown.passages} == {p.text for p in straight.passages}


@given(items, st.integers(1, 3))
def test_shuffling_keeps_what_there_is(item, which):
    shown = context(f"open6~shuffle{which}").apply(item)
    assert sorted(p.text for p in shown.passages) == sorted(p.text for p in item.passages[:6])


def test_orders_differ():
    orders = {
        tuple(p.text for p in context(f"open6~shuffle{which}").apply(ONE[0]).passages)
        for which in range(1, 9)
    }
    assert len(orders) > 5


@given(items, st.integers(0, 100))
def test_typos_spare_the_answer(item, percent):
    plain, noisy = context("gold+1").apply(item), context(f"gold+1~typos{percent}").apply(item)
    assert noisy.answers == item.answers
    kept = [p for p in noisy.passages if p.gold]
    assert holds(kept[0].text, item.answers) == holds(gold_passages(item)[0].text, item.answers)
    changed = sum(a != b for a, b in zip(_words(plain), _words(noisy), strict=True))
    assert percent > 0 or changed == 0
    if percent == 100:
        long = [word for word in _words(plain) if len(word) >= 6 and word.isalpha()]
        assert changed > 0.4 * len(long)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("Coca-Cola", "The Coca-Cola, or CocaCola, firm sells cola everywhere."),
        ("O'Brien", "Conan O\u2019Brien and OBrien spoke together yesterday."),
        ("Weber\u2014Fechner", "Fechner and Weber\u2014Fechner laws measure sensation."),
        ("\u6771\u4eac", "\u65e5\u672c\u306e\u9996\u90fd\u306f\u6771\u4eac\u3067\u3059 indeed surely"),
    ],
)  # fmt: skip
def test_typos_spare_answers_with_marks(answer, text):
    item = Item("Which?", (answer,), (Passage(text, True, 1, "gold"),))
    for seed in range(20):
        shown = context("gold~typos100").apply(item, seed=seed).passages[0].text
        assert shown != text
        for word in re.findall(r"[^\W_]{2,}", answer):
            assert shown.casefold().count(word.casefold()) == text.casefold().count(word.casefold())
        assert holds(shown, [answer])


def _words(item):
    return " ".join([item.question, *(p.text for p in item.passages)]).split()


def test_more_typos_keep_the_fewer():
    less, more = (_words(context(f"gold~typos{n}").apply(ONE[1])) for n in (20, 60))
    clean = _words(context("gold").apply(ONE[1]))
    for before, few, many in zip(clean, less, more, strict=True):
        assert few in (before, many)


def test_a_paraphrase_is_its_maker_s_or_a_frame():
    for item in ONE:
        shown = context("gold~paraphrase").apply(item)
        assert shown.question != item.question
        assert shown.question in item.metadata["paraphrases"]
    bare = dataclasses.replace(ONE[0], metadata={})
    assert bare.question in context("closed~paraphrase").apply(bare).question


@given(st.permutations(range(8)), st.integers(0, 3))
def test_no_item_depends_on_another(order, seed):
    chosen = [context("gold+3~shuffle~typos20"), context("gold+3~paraphrase")]
    alone = {at: [one.apply(ONE[at], seed=seed) for one in chosen] for at in range(8)}
    for at in order:
        assert [one.apply(ONE[at], seed=seed) for one in chosen] == alone[at]


def test_seeds_differ():
    shown = {context("gold+4").apply(ONE[0], seed=seed).passages for seed in range(10)}
    assert len(shown) > 5


FILE = Item(
    "Where is it?",
    ("bay",),
    (
        Passage("It is in the bay.", True, 1, "gold"),
        Passage("The bay has it.", True, 1, "gold"),
        Passage("It is a thing.", False, -1, "hard"),
        Passage("Also about the bay.", False, -1, "hard"),
    ),
)
POOL = ["It is in the bay.", "Fog is wet.", "A bay is a bay.", "Rope is long.", "Salt."]


def test_items_without_random_distractors_borrow_some():
    shown = context("gold+3").apply(FILE, POOL)
    borrowed = {p.text for p in shown.passages if not p.gold}
    assert borrowed == {"Fog is wet.", "Rope is long.", "Salt."}, "never one with the answer"
    assert golds(context("gold@2/3").apply(FILE, POOL)) == [2]
    assert [p.text for p in gold_passages(FILE)] == ["It is in the bay."], "one gold of each hop"
    marked = ["The bay\u2019s fog.", "A bay-side inn.", "\u201cBay\u201d it said."]
    with pytest.raises(ItemError, match="it has 0 random distractors"):
        context("gold+1").apply(FILE, marked)
    yes = dataclasses.replace(FILE, answers=("no",))
    context("gold+2").apply(yes, ["there is no wind", "no rope"])


@pytest.mark.parametrize(
    ("name", "item", "says"),
    [
        ("gold+4", FILE, "it has 3 random distractors of the 4 needed"),
        ("gold+2hard", FILE, "it has 1 hard distractors of the 2 needed"),
        ("gold+1counterfactual", FILE, "it has 0 counterfactual distractors of the 1 needed"),
        ("open5", FILE, "it has 4 passages of the 5 needed"),
        ("adjacent+1", FILE, "its evidence is 1 passage, and adjacent.1 places two"),
        ("gold@1/2", TWO[0], "its evidence is 2 passages: adjacent.n and far.n place those"),
        ("irrelevant1/2", TWO[0], "its evidence is 2 passages, too many for irrelevant1/2"),
        ("gold", dataclasses.replace(FILE, passages=FILE.passages[2:]), "none of its passages is gold"),
        ("open", dataclasses.replace(FILE, passages=()), "it has no passages"),
    ],
)  # fmt: skip
def test_items_that_cannot_be_shown_so(name, item, says):
    with pytest.raises(ItemError, match=says):
        context(name).apply(item, POOL)


def test_who_needs_a_pool():
    needing = {name for name in NAMES if context(name).needs_pool}
    assert needing == {
        "gold+4", "gold@2/5", "irrelevant3/5", "adjacent+4", "reversed+4", "far-reversed+2",
        "gold+1~paraphrase",
    }  # fmt: skip
    assert isinstance(context("gold"), Context)
