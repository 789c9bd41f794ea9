"""Prompts: one template for all, parts where they are said to be, one start token, one way to read."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from anchorwatch.errors import ItemError, PromptError, SpecError
from anchorwatch.evaluation import prompt_templates
from anchorwatch.evaluation.contexts import context
from anchorwatch.evaluation.prompt_templates import (
    TEMPLATES,
    Template,
    extract_answer,
    template,
    until_end,
)
from anchorwatch.evaluation.questions import build_question
from anchorwatch.evaluation.synthetic import Item, Passage
from anchorwatch.evaluation.tasks import task
from strategies import load

ITEM = next(iter(task("synthetic/one-hop")))
CHAIN = next(iter(task("synthetic/two-hop")))


def test_the_default_is_the_items_own_prompt():
    for name in ("closed", "gold", "gold+3"):
        shown = context(name).apply(ITEM)
        asked = template("plain").render(shown)
        assert asked.text == shown.prompt()
        assert dict(asked.regions) == shown.regions()
        assert template("plain", chat=True).render(shown).text == shown.message()
    shown = context("far+2").apply(CHAIN)
    assert dict(template("plain").render(shown).regions) == shown.regions()


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.sampled_from(sorted(TEMPLATES)), st.lists(texts, max_size=4), texts)
def test_every_part_stands_where_it_is_said_to(name, passages, asks):
    """Also where a text spells `{question}` or braces of its own."""
    passages = [*passages, "{question} {passages} {text} {n} {"][: len(passages)]
    item = Item(asks, ("a",), tuple(Passage(text, at == 1, 1) for at, text in enumerate(passages)))
    asked = template(name).render(item)
    assert asked.text[slice(*asked.regions["question"])] == asks
    for region, passage in zip(
        prompt_templates.region_names(item.passages), item.passages, strict=True
    ):
        assert asked.text[slice(*asked.regions[region])] == passage.text


def test_the_papers_prompts():
    closed = context("closed").apply(ITEM)
    rules, examples = template("floating-rules"), template("floating-examples")
    for one in (rules, examples):
        assert "Passage 1:\nNo relevant context available." in one.render(closed).text
        shown = context("gold+1").apply(ITEM)
        text = one.render(shown).text
        assert f"Passage 2:\n{shown.passages[1].text}" in text
        assert text.index(shown.passages[1].text) < text.index(ITEM.question)
    assert rules.render(closed).text.endswith(f"Question: {ITEM.question}\nShort Answer:")
    assert examples.render(closed).text.count("\nAnswer:") == 4, "three worked examples"
    assert examples.render(closed).text.endswith(f"Question: {ITEM.question}\nAnswer:")


def test_several_golds_have_names_of_their_own():
    golds = tuple(Passage(text, True, 1) for text in ("one", "two"))
    assert prompt_templates.region_names(golds) == ["gold 1", "gold 2"]
    hops = (Passage("b", True, 2), Passage("x", False), Passage("a", True, 1))
    assert prompt_templates.region_names(hops) == ["gold 2", "distractor 1", "gold 1"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (" Oslo", "Oslo"),
        ("\n\n Oslo.\nQuestion: Who?", "Oslo."),
        ("Oslo\nAnswer: Bergen", "Oslo"),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_an_answer_ends_at_the_first_stop(written, said):
    assert extract_answer(written, template("plain")) == said


def test_other_stops():
    one = Template("mine", "{passages}{question}", stops=("Question:", "END"))
    assert extract_answer("Oslo\nor so END Question:", one) == "Oslo\nor so"
    assert extract_answer("Oslo", Template("mine", "{passages}{question}", stops=())) == "Oslo"


def test_what_is_written_after_an_end_token_is_not_read():
    assert until_end([5, 6, 2, 7], (2, 9), mask_id=3) == [5, 6]
    assert until_end([5, 3, 6, -1, 8, 9, 5], (2, 9), mask_id=3) == [5, 6, 8]
    assert until_end([2, 5], (2,), mask_id=None) == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"ask": "{question}"}, r"ask needs \{passages\} once"),
        ({"ask": "{passages}{question}{question}"}, r"ask needs \{question\} once"),
        ({"ask": "{passages}{question}", "passage": "?"}, r"passage needs \{text\} once"),
        ({"ask": "{passages}{question}", "stops": ("\n", "")}, "a stop is empty: leave it out"),
    ],
)
def test_templates_that_are_none(fields, says):
    with pytest.raises(SpecError, match=says):
        Template("mine", **fields)
    with pytest.raises(SpecError, match="expected one of plain, floating-rules, floating-examples"):
        template("paper")
    with pytest.raises(SpecError, match=r"put \{passages\} first"):
        Template("mine", "{question}{passages}").render(ITEM)


def starting(vocabulary, chat_template=None):
    """A tokenizer that puts a start token in front of every text by itself."""
    words = {word: number for number, word in enumerate(["<s>", "</s>", "<unk>", *vocabulary])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    made.chat_template = chat_template
    return made


@dataclass(frozen=True)
class Specials:
    bos_id: int
    end_ids: tuple[int, ...]
    mask_id: int | None
    special_ids: frozenset[int] = frozenset({0, 1, 2})


class Speaker:
    """As much of a model as reading a prompt takes."""

    source = "speaker"

    def __init__(self, tokenizer, ends=(1,)):
        self.tokenizer = tokenizer
        self.specials = Specials(bos_id=0, end_ids=ends, mask_id=None)

    def encode(self, prompt):
        from anchorwatch.models.prompt_encoding import encode_prompt

        return encode_prompt(prompt, self.tokenizer, "speaker")


CHAT = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
BARE = Item("Where is it", ("bay",), (Passage("It is in the bay", True, 1),))


@pytest.mark.parametrize("chat", [False, True])
def test_there_is_one_start_token(chat):
    model = Speaker(starting(["Where", "is", "it", "bay", "[", "]", "Question", ":"], CHAT))
    asked = build_question(model, template("plain", chat=chat), "k", BARE, parts=True)
    assert asked.ids[0] == 0 and asked.ids.count(0) == 1
    inside = model.tokenizer.decode([asked.ids[at] for at in asked.regions["question"]])
    assert inside == "Where is it"


def test_two_start_tokens_are_refused():
    doubled = Speaker(starting(["Where"], CHAT))
    spelled = Item("Where <s> is it", ("bay",), ())
    for item, chat in ((spelled, False), (spelled, True), (Item("<s>", ("a",), ()), False)):
        with pytest.raises(ItemError, match="it spells <s>, a control token of speaker"):
            build_question(doubled, template("plain", chat=chat), "k", item, parts=False)
    begins = Template("mine", "<s>{passages}{question}")
    for ends in ((1,), (0, 1)):
        with pytest.raises(PromptError, match=r"start token 0 more than once: .* take it out"):
            build_question(Speaker(starting(["Where"]), ends), begins, "k", BARE, parts=False)


def test_a_start_token_that_also_ends_texts_may_stand_inside():
    both = Speaker(starting(["Where"]), ends=(0,))
    between = Template("mine", "{passages}<s>{question}")  # as GPT-2's parts texts
    assert build_question(both, between, "k", BARE, parts=False).ids.count(0) == 2


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/arm"])
@pytest.mark.parametrize("chat", [False, True])
def test_parts_become_token_positions(name, chat):
    model, shown = load(name), context("gold+2").apply(ITEM)
    asked = build_question(model, template("plain", chat=chat), "k", shown, parts=True)
    assert list(asked.regions) == [*prompt_templates.region_names(shown.passages), "question"]
    for part, text in zip(asked.regions, [*(p.text for p in shown.passages), ITEM.question], strict=True):  # fmt: skip
        spoken = model.decode([asked.ids[at] for at in asked.regions[part]])
        assert spoken.strip() == text


def test_both_families_get_the_same_text():
    shown = context("gold+2").apply(ITEM)
    one, other = (
        build_question(load(name), template("plain"), "k", shown, parts=False).ids
        for name in ("tiny/llada", "tiny/arm")
    )
    assert one == other
