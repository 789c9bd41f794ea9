"""Worlds: items say what stands in them, are the same everywhere, and never leak a split."""

import hashlib
import json
import math
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorwatch import worlds
from anchorwatch.evaluation.synthetic import (
    Distractors,
    Draw,
    Item,
    Passage,
    World,
    fragments,
    guesser_chance,
    split_of,
)
from anchorwatch.evaluation.synthetic.backcopy import TRIGGERS, WORDS, Backcopy
from anchorwatch.evaluation.synthetic.names import KINDS, SPLITS, draw_name, likeliest
from anchorwatch.evaluation.synthetic.relations import RELATIONS
from references import reading
from tolerances import BINOMIAL_ERRORS

MANY = Distractors(random=2, hard=2)
splits, hops = st.sampled_from(SPLITS), st.sampled_from([1, 2])
seeds, indices = st.integers(0, 2**40), st.integers(0, 2**50)
counts = st.builds(Distractors, st.integers(0, 4), st.integers(0, 4), st.integers(0, 2))
drawn_worlds = st.builds(World, splits, hops, seeds, counts, st.integers(0, 4))


def facts_of(item):
    return set().union(*(reading.triples(passage.text) for passage in item.passages))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("hops", [1, 2])
def test_a_reader_finds_the_answer_in_the_text_and_only_it(split, hops):
    for item in worlds.items(split, hops, 600, seed=5, distractors=MANY):
        assert reading.answers(item.question, facts_of(item)) == set(item.answers), item.prompt()


def test_no_two_subjects_share_what_is_asked_about():
    """Of 134 years and 62 trades two would often be the same, and a question have two answers."""
    few = ("founded", "launched", "printed", "birth_year", "trade")
    world = World("held-out", distractors=Distractors(2, 6), reverse=1.0, relations=few)
    for index in range(300):
        item = world[index]
        assert reading.answers(item.question, facts_of(item)) == set(item.answers), item.prompt()


@given(drawn_worlds, indices)
def test_every_paraphrase_asks_the_same(world, index):
    item = world[index].keep("gold", "random", "hard")
    for wording in item.metadata["paraphrases"]:
        assert reading.answers(wording, facts_of(item)) == set(item.answers)
    assert item.question in item.metadata["paraphrases"]


@given(drawn_worlds, indices)
def test_gold_is_necessary_and_sufficient(world, index):
    item = world[index]
    gold = item.keep("gold")
    assert reading.answers(item.question, facts_of(gold)) == set(item.answers)
    assert [p.hop for p in sorted(gold.passages, key=lambda p: p.hop)] == [
        *range(1, world.hops + 1)
    ]
    assert all((p.kind == "gold") == p.gold == (p.hop > 0) for p in item.passages)
    for left_out in range(len(gold.passages)):
        others = [at for at, p in enumerate(item.passages) if p != gold.passages[left_out]]
        rest = item.arrange(others).keep("gold", "random", "hard")
        if rest.passages:
            assert not reading.answers(item.question, facts_of(rest)) & set(item.answers)


@given(splits, hops, seeds, indices)
def test_counterfactual_passages_say_the_counter_answers(split, hops, seed, index):
    item = World(split, hops, seed, Distractors(counterfactual=2))[index]
    told = set(item.metadata["counter_answers"])
    assert reading.answers(item.question, facts_of(item)) == told | set(item.answers)
    assert told.isdisjoint(item.answers)
    assert World(split, hops, seed)[index].metadata["counter_answers"] == ()


def test_hard_distractors_state_the_asked_relation_of_somebody_else():
    alike = 0
    for item in worlds.items("train", 1, 300, distractors=Distractors(hard=1)):
        (hard,) = (p for p in item.passages if p.kind == "hard")
        (relation,) = item.metadata["relations"]
        said = [s for s, r, _ in reading.triples(hard.text) if r == relation]
        assert said and item.metadata["entities"][0] not in said
        alike += said[0][:3] == item.metadata["entities"][0][:3]
    assert alike > 30  # of about 300 * 7 / 17 people, half


@given(drawn_worlds, indices)
def test_rivals_are_the_names_of_the_answer_s_kind(world, index):
    item = world[index]
    relation = RELATIONS[item.metadata["relations"][-1]]
    kind = relation.subject if item.metadata["reverse"] else relation.object
    asked = item.metadata["entities"][-1 if item.metadata["reverse"] else 0]
    names = set()
    for subject, name, object_ in facts_of(item):
        names |= {subject} if RELATIONS[name].subject == kind else set()
        names |= {object_} if RELATIONS[name].object == kind else set()
    assert set(item.rivals) == names - {*item.answers, asked}


@given(drawn_worlds, indices)
def test_a_guesser_picks_among_the_answer_and_its_rivals(world, index):
    item = world[index]
    assert guesser_chance(item) == 1 / (1 + len(item.rivals))
    no_answer = [at for at, passage in enumerate(item.passages) if not passage.gold]
    if no_answer:
        assert guesser_chance(item.arrange(no_answer)) == 0, "the answer is not among the names"


@given(splits, hops, indices)
def test_without_passages_a_guesser_picks_among_all_names(split, hops, index):
    world = World(split, hops)
    assert guesser_chance(world[index].keep()) == world.closed_book_chance()


def test_a_guesser_of_a_file_s_item_is_unknown():
    item = Item("Where?", ("Oslo",), (Passage("In Oslo.", gold=True, hop=1),), {"format": "kilt"})
    assert math.isnan(guesser_chance(item)) and math.isnan(guesser_chance(item.keep()))


@given(splits, hops, seeds, indices, counts, counts)
def test_distractors_change_nothing_else(split, hops, seed, index, few, more):
    a, b = World(split, hops, seed, few)[index], World(split, hops, seed, more)[index]
    assert (a.question, a.answers) == (b.question, b.answers)
    assert a.keep("gold").passages == b.keep("gold").passages
    shared = set(a.passages) & set(b.passages)
    for kind in ("random", "hard", "counterfactual"):
        assert sum(p.kind == kind for p in shared) == min(getattr(few, kind), getattr(more, kind))
    assert [p for p in a.passages if p in shared] == [p for p in b.passages if p in shared]


@given(drawn_worlds, indices)
def test_an_item_is_a_function_of_its_number(world, index):
    assert world[index] == world[index]
    assert world[index].question != world[index + 1].question or world[index] != world[index + 1]


def test_items_are_the_same_in_another_process():
    code = "from anchorwatch import worlds\nimport hashlib\n"
    code += "said = [worlds.World('held-out', 2, 9, worlds.Distractors(1, 1, 1))[i].prompt() for i in range(50)]\n"
    code += "print(hashlib.sha256('|'.join(said).encode()).hexdigest())"
    run = [sys.executable, "-c", code]
    found = {subprocess.run(run, capture_output=True, text=True).stdout for _ in range(2)}
    assert len(found) == 1 and len(found.pop()) == 65


def test_items_are_what_they_were():
    """A change of any wording or draw changes every corpus: whoever makes it, writes it down here."""
    numbers = ((split, hops, index) for split in SPLITS for hops in (1, 2) for index in range(50))
    said = (World(s, h, 0, Distractors(1, 1, 1))[i].prompt() for s, h, i in numbers)
    digest = hashlib.sha256("|".join(said).encode()).hexdigest()
    assert digest == "a7be43349d7111c48948aa2f558a14df05cc4346b61192559cc61955237719fb"


def test_an_item_survives_json():
    item = World("train", 2, 1, Distractors(1, 1, 1))[3]
    assert Item.from_dict(json.loads(json.dumps(item.as_dict()))) == item


@given(drawn_worlds, indices)
def test_regions_hold_what_they_name(world, index):
    item = world[index]
    prompt, regions = item.prompt(), item.regions()
    begin, end = regions.pop("question")
    assert prompt[begin:end] == item.question
    assert sorted(prompt[b:e] for b, e in regions.values()) == sorted(p.text for p in item.passages)
    for name, (begin, end) in regions.items():
        (passage,) = {p for p in item.passages if p.text == prompt[begin:end]}
        assert passage.gold == name.startswith("gold")


def test_the_prompt_has_the_readme_s_form():
    item = World()[0]
    (passage,) = item.passages
    assert item.prompt() == f"Passage: {passage.text}\nQuestion: {item.question}\nAnswer:"
    assert item.keep().prompt() == f"Question: {item.question}\nAnswer:"


@given(splits, hops, seeds, indices)
def test_every_name_belongs_to_the_split(split, hops, seed, index):
    item = World(split, hops, seed, MANY)[index]
    for subject, _, object_ in facts_of(item):
        for name in (subject, object_):
            words = [name] if name.isdigit() or not is_made_up(name) else name.split()
            assert {split_of(word) for word in words} == {split}, name


def is_made_up(name):
    syllables = r"[BDFGKMPTVZ][aeiou][lnr]?([bdfgkmptvz][aeiou][lnr]?){1,2}"
    shape = rf"{syllables}({reading.TOWN}|{reading.LAND})?"
    return all(re.fullmatch(shape, word) for word in name.split())


@given(st.sampled_from(KINDS), seeds)
def test_a_held_out_name_is_not_even_inside_a_training_name(kind, seed):
    held, seen = (draw_name(kind, split, Draw(seed, split)) for split in ("held-out", "train"))
    assert held not in seen
    assert all(word not in seen for word in held.split()) or " " in held


def test_the_closed_book_is_at_chance():
    """Nobody who knows the pools, but not the passages, is right more often than `likeliest`."""
    for hops in (1, 2):
        world, n = World("held-out", hops), 5_000
        by_question = {}
        for index in range(n):
            item = world[index]
            key = (*item.metadata["relations"], item.metadata["reverse"])
            by_question.setdefault(key, Counter())[item.answers[0]] += 1
        # a guesser who learns the commonest answer of each question type on one half of the items
        right = 0
        for index in range(n, 2 * n):
            item = world[index]
            key = (*item.metadata["relations"], item.metadata["reverse"])
            right += by_question[key].most_common(1)[0][0] == item.answers[0]
        chance = world.closed_book_chance()
        assert chance < 0.006
        assert right / n < chance + BINOMIAL_ERRORS * (chance / n) ** 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_the_likeliest_name_is_no_likelier_than_said(kind):
    draw, n = Draw("likeliest", kind), 20_000
    often = Counter(draw_name(kind, "held-out", draw) for _ in range(n)).most_common(1)[0][1]
    p = likeliest(kind, "held-out")
    assert often / n < p + (BINOMIAL_ERRORS + 2) * (p / n) ** 0.5 + 2 / n


def test_a_question_never_gives_its_answer_away():
    for item in worlds.items("held-out", 2, 500, distractors=MANY):
        assert item.answers[0] not in item.question


@given(drawn_worlds, indices)
def test_fragments_are_the_text_and_hold_no_whole_name(world, index):
    text = world[index].prompt()
    cut = fragments(text)
    assert "".join(cut) == text
    for subject, _, object_ in facts_of(world[index]):
        for name in (subject, object_):
            if is_made_up(name):
                assert not any(name in fragment for fragment in cut)


@given(st.floats(0, 1), st.integers(1, 16), seeds, indices)
def test_only_triggers_copy(triggers, back, seed, index):
    words = Backcopy(triggers, back).words(seed, index, 200)
    assert len(words) == 200 and set(words) <= {*WORDS, *TRIGGERS}
    after = {}
    for at in range(1, 200):
        before, word = words[at - 1], words[at]
        if before in TRIGGERS:
            assert word == [w for w in words[:at] if w not in TRIGGERS][-back]
        elif word not in TRIGGERS:
            after.setdefault(before, set()).add(word)
    assert all(len(found) <= 8 for found in after.values())
    assert all(word not in found for word, found in after.items())
    assert Backcopy(triggers, back).words(seed, index, 50) == words[:50]


def test_triggers_come_as_often_as_asked():
    words = Backcopy(triggers=0.1).words(0, 0, 20_000)
    share = sum(word in TRIGGERS for word in words) / sum(word not in TRIGGERS for word in words)
    assert 0.085 < share < 0.1  # the copied word is not the chain's, and adds to the divisor
    assert not set(TRIGGERS) & set(Backcopy(triggers=0).words(0, 0, 1000))


def test_draws_are_even():
    counts = Counter(Draw("even", i).below(7) for i in range(7000))
    assert all(abs(counts[k] - 1000) < BINOMIAL_ERRORS * 30 for k in range(7))
    assert sorted(Draw(3).shuffle(range(50))) == list(range(50))
    assert not Draw(1).chance(0.0) and Draw(1).chance(1.0)


def test_old_names_work_and_warn():
    item = World()[0]
    with pytest.warns(DeprecationWarning, match=r"Item\.keeping is now Item\.keep"):
        assert item.keeping() == item.keep()
    with pytest.warns(DeprecationWarning, match=r"Item\.arranged is now Item\.arrange"):
        assert item.arranged([0]) == item.arrange([0])
    with pytest.warns(DeprecationWarning, match=r"Draw\.shuffled is now Draw\.shuffle"):
        assert Draw(3).shuffled(range(9)) == Draw(3).shuffle(range(9))
