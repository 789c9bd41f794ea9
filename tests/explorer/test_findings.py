"""What stands out in a run: planted truths, and the same numbers as the views that show them."""

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.evaluation.synthetic import Item, Passage
from anchorwatch.explorer import encode
from anchorwatch.explorer.export import export
from anchorwatch.explorer.findings import find_all
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import MissingError, Run
from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.metrics.sink_rules import RULES, rulli, topk
from synthetic_traces import (
    HOSTILE,
    column,
    hostile_trace,
    moving_maps,
    planted,
    small_trace,
    uniform,
)

KINDS = ("sink", "move", "split", "retrieval")
ITEM = Item(
    "buoy",
    ("sand",),
    (
        Passage("anchor bay.", False, kind="random"),
        Passage("It was buoy sand.", True, 1),
        Passage("cabin moon.", False, kind="random"),
    ),
)


def text_of(parts):
    return "".join(part["text"] for part in parts)


def by_kind(found):
    return {each["kind"]: each["findings"] for each in found["lists"]}


@pytest.fixture(scope="module")
def wired():
    """Findings of wired networks, each run once."""
    kept = {}

    def find(name):
        if name not in kept:
            model = aw.load(f"wired/{name}")
            decoding = aw.decoding.LowConfidence(6, 6)
            trace = aw.run(model, ITEM.prompt(), decoding, regions=ITEM.regions())
            kept[name] = trace, find_all(trace, rulli())
        return kept[name]

    return find


HAS = {
    "even": set(),
    "static-sink": {"sink"},
    "first-mask-sink": {"sink", "move"},
    "split-sink": {"sink", "move", "split"},
    "retrieval": {"sink", "retrieval"},
    "no-retrieval": {"sink"},
}


@pytest.mark.parametrize("name", HAS)
def test_wired_networks_have_what_was_wired(wired, name):
    _, found = wired(name)
    assert [each["kind"] for each in found["lists"]] == list(KINDS)
    assert {kind for kind, findings in by_kind(found).items() if findings} == HAS[name]
    for each in found["lists"]:
        assert bool(each["none"]) == (not each["findings"])


def test_an_even_run_says_that_nothing_stands_out(wired):
    _, found = wired("even")
    assert found["place"] is None
    assert text_of(found["words"]).startswith("Nothing stands out in this run: in no layer")
    assert "about 4 times an even share" in text_of(found["words"])


def test_a_sink_that_follows_the_first_mask_moves_with_it(wired):
    trace, found = wired("first-mask-sink")
    place = found["place"]
    assert trace.role[place["step"], place["token"]] == aw.trace.trace.MASKED
    said = text_of(found["words"])
    assert said.startswith(f"In layer {place['layer']} the top key moves from the masked position")
    assert "times an even share." in said


def test_the_retrieval_head_is_the_wired_one(wired):
    trace, found = wired("retrieval")
    (head,) = by_kind(found)["retrieval"]
    assert "while “sand” is written" in text_of(head["words"])
    assert trace.token(int(trace.canvas[0, head["place"]["token"]])) == " sand"
    assert head["value"] > 0.9


PATH = [2, 2, 2, 9, 9, 9]


def moved_trace(**more):
    return planted(moving_maps(PATH, length=12, share=0.6, heads=2), prompt=4, **more)


def test_a_planted_move_is_where_it_was_planted():
    found = find_all(moved_trace(texts={3: " Answer", 10: " ."}), rulli())
    (move,) = by_kind(found)["move"]
    assert move["place"] == {"step": 3, "layer": 0, "head": None, "token": 9, "view": "map"}
    assert move["value"] == pytest.approx(0.6, abs=1e-3)
    assert move["null"] == pytest.approx(1 / 12)
    assert move["lift"] == pytest.approx(0.6 * 12, rel=2e-3)
    said = text_of(found["words"])
    assert "from “Answer” to the masked position 9 (later “.”) at step 3 of 6" in said
    assert "the new one takes 60 % of attention, 7.2 times an even share." in said
    # The list says the same share, and that of the step before: the other 11 keys have .4 alike.
    assert "the new one goes from 3.6 % to 60 % of attention" in text_of(move["words"])


def test_every_claim_of_the_first_sentence_is_a_link():
    words = find_all(moved_trace(), rulli())["words"]
    linked = [part["text"] for part in words if "place" in part]
    assert linked[0] == "layer 0"
    assert linked[-2:] == ["60 % of attention", "7.2 times an even share"]
    assert len(linked) == 6
    assert [part for part in words if "place" in part][-1]["place"]["scale"] == "lift"


def test_a_larger_change_comes_first_and_a_sink_that_stays_has_none():
    maps = uniform(6, 3, 1, 12)
    for step, key in enumerate(PATH):
        maps[step, 0] = column(12, key, 0.5)
        maps[step, 1] = column(12, key, 0.8)
        maps[step, 2] = column(12, 0, 0.9)
    lists = by_kind(find_all(planted(maps, prompt=4), rulli()))
    assert [one["place"]["layer"] for one in lists["move"]] == [1, 0]
    assert [one["place"]["layer"] for one in lists["sink"]] == [2, 1, 0]


def one_moving_head():
    """Two layers of eight heads, all even but head 5 of layer 1, whose sink moves at step 3."""
    maps = uniform(6, 2, 8, 40)
    for step, key in enumerate(PATH):
        maps[step, 1, 5] = column(40, key, 0.5)
    return planted(maps, prompt=4, texts={3: " Answer", 10: " ."})


def test_what_a_single_head_does_stands_out_where_the_mean_of_heads_is_even():
    found = find_all(one_moving_head(), rulli())
    lists = by_kind(found)
    for kind in ("sink", "move"):
        (one,) = lists[kind]
        assert (one["place"]["layer"], one["place"]["head"]) == (1, 5)
        assert one["value"] == pytest.approx(0.5, abs=1e-3)
        assert one["lift"] == pytest.approx(20, rel=2e-3)
        assert text_of(one["words"]).startswith("Layer 1, head 5: ")
    said = text_of(found["words"])
    assert said.startswith("In head 5 of layer 1 the top key moves from “Answer”")
    assert "the new one takes 50 % of attention, 20 times an even share." in said
    among = "16 single heads, each counted as 1/8, and in the mean of heads of 2 layers"
    assert said.endswith(f" This is the only move between sinks in {among}.")
    assert all(part["place"]["head"] == 5 for part in found["words"] if "place" in part)


def test_a_head_counts_by_its_share_of_the_layer():
    maps = uniform(6, 2, 8, 40)
    for step, key in enumerate(PATH):
        maps[step, 0] = column(40, key, 0.2)  # a fifth of the whole layer moves
        maps[step, 1, 5] = column(40, key, 0.6)  # of one head of eight alone
    moves = by_kind(find_all(planted(maps, prompt=4), rulli()))["move"]
    assert [(one["place"]["layer"], one["place"]["head"]) for one in moves] == [(0, None), (1, 5)]


def test_the_first_sentence_says_how_many_it_was_chosen_from():
    maps = uniform(6, 2, 8, 40)
    for step, key in enumerate([2, 9, 2, 9, 9, 9]):
        maps[step, 0] = column(40, key, 0.2)  # three moves, of the mean and of each of eight heads
        maps[step, 1, 5] = column(40, key, 0.6)  # and of one head, whose mean has them too
    trace = planted(maps, prompt=4)
    paths = [
        slice_.sink_path(rulli())
        for layer in iter_layers(trace)
        for slice_ in (layer, layer.head_mean())
    ]
    count = sum(int((np.abs(np.diff(path)) > 0).sum()) for path in paths)
    assert count >= 3 * 10
    said = text_of(find_all(trace, rulli())["words"])
    assert f"This is the largest of {count} moves between sinks in 16 single heads" in said
    said = text_of(find_all(trace, rulli(), heads=False)["words"])
    assert "between sinks in the mean of heads of 2 layers." in said


def test_the_first_sentence_is_about_a_strong_sink_where_little_moves():
    maps = uniform(6, 2, 8, 40)
    maps[:, 0] = column(40, 0, 0.9)
    for step, key in enumerate(PATH):
        maps[step, 1, 5] = column(40, key, 0.5)  # a sixteenth of the layer
    found = find_all(planted(maps, prompt=4), rulli())
    assert text_of(found["words"]).startswith("In layer 0 ")
    assert "is the top key at 6 of 6 steps" in text_of(found["words"])
    assert "This is the strongest sink in 16 single heads" in text_of(found["words"])
    assert len(by_kind(found)["move"]) == 1


def test_a_page_that_is_sent_says_nothing_of_heads_that_it_cannot_show(tmp_path):
    run = Run(from_memory(one_moving_head()))
    _, meta = encode.unpack(run.sent_packet("findings"))
    assert not any(each["findings"] for each in meta["lists"])
    assert text_of(meta["words"]).startswith("Nothing stands out in this run: in no layer is")
    folder = export([run], tmp_path / "site")
    assert (folder / "data" / "0" / "findings.bin").read_bytes() == run.sent_packet("findings")


def test_masked_and_written_queries_that_look_elsewhere_are_a_split():
    maps = uniform(6, 1, 1, 16)
    trace = planted(maps, prompt=4)
    for step in range(6):
        masked = trace.role[step] == aw.trace.trace.MASKED
        maps[step, 0, 0, masked] = column(16, 1, 0.8)[0]
        maps[step, 0, 0, ~masked] = column(16, 2, 0.7)[0]
    (split,) = by_kind(find_all(planted(maps, prompt=4), rulli()))["split"]
    assert split["value"] == pytest.approx(0.7, abs=1e-3)
    assert split["place"]["token"] == 2
    assert split["place"]["group"] == "written"
    # Three written queries are the fewest of which a key can receive more than two would give.
    assert split["place"]["step"] == 3


def test_numbers_are_those_of_the_views():
    trace = small_trace()
    run = Run(from_memory(trace))
    found = find_all(trace, run.options.rule)
    assert any(each["findings"] for each in found["lists"])
    for kind in ("sink", "move"):
        for one in by_kind(found)[kind]:
            step, layer, key = (one["place"][name] for name in ("step", "layer", "token"))
            arrays, _ = encode.unpack(run.packet(f"layer-{layer}"))
            assert arrays["top_key"][step] == key
            assert one["value"] == pytest.approx(float(arrays["top_share"][step]), rel=1e-6)
            row, _ = encode.unpack(run.packet(f"row-{step}-{layer}-mean"))
            assert one["null"] == pytest.approx(float(row["null"][0, key]), rel=1e-6)


def test_steps_before_a_fork_are_no_moves():
    maps = moving_maps(PATH, length=12, share=0.6)
    maps[:3] = np.nan
    lists = by_kind(find_all(planted(maps, prompt=4), rulli()))
    assert lists["move"] == []
    assert len(lists["sink"]) == 1


def test_even_attention_stands_out_by_no_rule():
    trace = planted(uniform(4, 2, 2, 12), prompt=4)
    for rule in (kind() for kind in RULES.values()):
        found = find_all(trace, rule)
        assert not any(each["findings"] for each in found["lists"]), str(rule)


def test_every_rule_says_in_words_what_a_sink_is():
    said = {kind().in_words() for kind in RULES.values()}
    assert len(said) == len(RULES)
    assert rulli().in_words() == "takes about 4 times an even share or more"
    assert rulli(3, "percent").in_words().startswith("takes 3 % of the attention more")
    assert topk(5).in_words() == "is one of the 5 that take most"


def test_the_packet_is_in_every_kind_of_page(tmp_path):
    run = Run(from_memory(moved_trace()))
    _, meta = encode.unpack(run.packet("findings"))
    assert meta == find_all(run.trace, rulli())
    assert "findings" in run.keys()  # noqa: SIM118  (a method, not a mapping)
    folder = export([run], tmp_path / "site")
    assert (folder / "data" / "0" / "findings.bin").read_bytes() == run.sent_packet("findings")
    page = export([run], tmp_path / "page.html").read_text()
    assert '"findings":' in page


def test_a_run_without_received_attention_says_how_to_measure_it():
    trace = moved_trace()
    trace._dataset = trace._dataset.drop_vars("received")
    with pytest.raises(MissingError, match=r"aw.replay\(model, trace"):
        Run(from_memory(trace)).packet("findings")


def test_hostile_tokens_are_marked_and_clipped():
    found = find_all(hostile_trace(), rulli(0))
    pieces = [part["text"] for part in found["words"]]
    for each in found["lists"]:
        pieces += [part["text"] for one in each["findings"] for part in one["words"]]
    assert pieces
    for piece in pieces:
        assert "\n" not in piece
        assert "\x1b" not in piece
        assert len(piece) < 160
    assert any(len(text) > 1000 for text in HOSTILE)


def test_two_tokens_of_one_text_are_told_apart_by_their_positions():
    maps = moving_maps(PATH, length=12, share=0.6)
    found = find_all(planted(maps, prompt=11, texts={3: " a", 10: " a"}), rulli())
    assert "from “a” at position 2 to “a” at position 9 at step 3" in text_of(found["words"])
