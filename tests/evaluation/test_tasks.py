"""Tasks: every format becomes the one schema, streamed, and nothing is dropped in silence."""

import csv
import gzip
import io
import json
import tracemalloc
import warnings
import zlib
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchWarning, SpecError
from anchorwatch.evaluation import readers, tasks
from anchorwatch.evaluation.synthetic import Item
from anchorwatch.evaluation.tasks import POOL, item_key, task
from question_files import HOTPOT, KILT, LOST, PLAIN, SQUAD, lines, packed, whole


def read(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return list(task(path, **options))


def gold(item):
    return [(passage.hop, passage.text) for passage in item.passages if passage.gold]


def test_kilt_with_segments(tmp_path):
    with pytest.warns(AnchorwatchWarning, match=r"line 1: nothing reads output\[\].provenance of"):
        one, two = task(lines(tmp_path / "nq_dev_psg.jsonl", KILT))
    assert one.question == "who wrote the lighthouse log"
    assert one.answers == ("Lena Berg", "L. Berg")
    assert [passage.text for passage in one.passages] == [
        "Logs. Many logs were kept.",
        "Log. It was written by Lena Berg in 1901.",
        "Berg. A berg is ice.",
    ]
    assert gold(one) == [(1, "Log. It was written by Lena Berg in 1901.")]
    assert one.metadata == {"id": "-4469503464110108318", "format": "kilt", "gold_by": "answer"}
    assert [passage.kind for passage in one.passages] == ["hard", "gold", "hard"]
    assert gold(two) == []


def test_lost_in_the_middle_packed(tmp_path):
    (item,) = read(packed(tmp_path / "nq-open-10_total_documents_gold_at_1.jsonl.gz", LOST))
    assert item.answers == ("Wilhelm Röntgen",)
    assert gold(item) == [(1, "List of prizes. Prize 1 went to somebody.")]
    assert item.metadata["gold_by"] == "flag"


def test_without_gold_marks_those_with_the_answer_count(tmp_path):
    rows = json.loads(json.dumps(LOST))
    for one in rows[0]["ctxs"]:
        del one["isgold"]
    (item,) = read(packed(tmp_path / "retrieved.jsonl.gz", rows))
    assert gold(item) == [(1, "List of prizes. Prize 2 went to somebody.")]


@pytest.mark.parametrize("indent", [None, 2])
def test_squad(tmp_path, indent):
    one, two = read(whole(tmp_path / "dev-v2.0.json", SQUAD, indent))
    assert one.answers == ("1820", "in 1820")
    assert gold(one) == [(1, "The harbor was built in 1820 by the crew.")]
    assert [passage.text for passage in one.passages if passage.kind == "hard"] == [
        "It has two piers."
    ]
    assert two.answers == ("",), "to say nothing is right where there is no answer"
    assert one.metadata["id"] == "56be"


@pytest.mark.parametrize("shape", ["array", "lines", "columns"])
def test_hotpot_and_2wiki(tmp_path, shape):
    if shape == "array":
        path = whole(tmp_path / "hotpot_dev_distractor_v1.json", HOTPOT, indent=1)
    elif shape == "lines":
        path = lines(tmp_path / "2wiki_500.jsonl", HOTPOT)
    else:
        import pandas as pd

        rows = json.loads(json.dumps(HOTPOT))
        for row in rows:
            titles, places = zip(*row["supporting_facts"], strict=True)
            row["supporting_facts"] = {"title": list(titles), "sent_id": list(places)}
            names, sentences = zip(*row["context"], strict=True)
            row["context"] = {"title": list(names), "sentences": list(sentences)}
            row.pop("evidences", None), row.pop("evidences_id", None)
        path = tmp_path / "validation.parquet"
        pd.DataFrame(rows).to_parquet(path)
    bridge, compared = read(path)
    assert gold(bridge) == [
        (1, "Aurora is a ship. Its captain was Lena Berg."),
        (2, "Lena Berg was born in Oslo."),
    ], "the passage with the answer is the second hop, whatever the order of the facts"
    assert bridge.passages[0].text == "Reef. A reef is shallow. It is long."
    assert [hop for hop, _ in sorted(gold(compared))] == [1, 2]


def test_plain_lines(tmp_path):
    one, two, three = read(lines(tmp_path / "mine.jsonl", PLAIN))
    assert gold(one) == [(1, "In the bay.")] and one.passages[1].kind == "hard"
    assert two.passages == () and two.metadata["gold_by"] == "none"
    assert three.answers == ("12",)
    assert gold(three) == [(1, "It is twelve fathoms.")], "the one text a question is about"


@pytest.mark.parametrize(
    ("name", "separator"), [("t.csv", ","), ("t.tsv", "\t"), ("t.csv.gz", ",")]
)
def test_tables(tmp_path, name, separator):
    made = io.StringIO()
    rows = csv.writer(made, delimiter=separator)
    rows.writerow(["id", "question", "answers", "passages"])
    rows.writerow(["1", 'Where, "exactly"?', '["bay", "the bay"]', '["In the bay.", "On\ndeck."]'])
    rows.writerow(["2", "Who?", "Lena", "Lena keeps watch."])
    raw = made.getvalue().encode("utf-8-sig")
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    one, two = read(tmp_path / name)
    assert one.question == 'Where, "exactly"?' and one.answers == ("bay", "the bay")
    assert gold(one) == [(1, "In the bay.")] and one.passages[1].text == "On\ndeck."
    assert two.answers == ("Lena",) and gold(two) == [(1, "Lena keeps watch.")]


def test_parquet_is_streamed_in_batches(tmp_path):
    import pandas as pd

    rows = [
        {"question": f"q{n}", "answer": f"a{n}", "context": f"a{n} is here"} for n in range(600)
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "t.parquet")
    found = read(tmp_path / "t.parquet")
    assert len(found) == 600 and found[599].answers == ("a599",)


def test_unknown_fields_are_said_once(tmp_path):
    rows = [KILT[1] | {"weather": "fog"}, KILT[1] | {"weather": "rain", "tide": 3}]
    rows[1] = rows[1] | {"passage": [{"segment": "The reef is south.", "colour": "red"}]}
    asked = task(lines(tmp_path / "k.jsonl", rows))
    with pytest.warns(AnchorwatchWarning) as said:
        list(asked)
        list(asked)
    assert [str(one.message).partition(": ")[2] for one in said] == [
        "nothing reads weather of the format kilt",
        "nothing reads passage[].colour, tide of the format kilt",
    ]


def test_fields_that_lose_to_another_are_said(tmp_path):
    row = {"question": "Who?", "answers": ["x"], "passages": ["x it is"]}
    other = {
        "input": "Write an answer. Who?",
        "context": "y it is",
        "answer": {"value": "z", "kind": 1},
    }
    with pytest.warns(AnchorwatchWarning) as said:
        (item,) = task(lines(tmp_path / "a.jsonl", [row | other]))
    assert [str(one.message).partition(": ")[2] for one in said] == [
        "nothing reads answer.kind, context beside passages, question beside input"
        " of the format plain"
    ]
    assert item.question == "Write an answer. Who?" and item.answers == ("z", "x")
    read(lines(tmp_path / "b.jsonl", [row | {"input": "Who?", "context": ""}]))


def test_answers_of_all_fields_are_right(tmp_path):
    row = {"question": "Where?", "answer": "New York City", "answers": ["New York City", "NYC"]}
    (item,) = read(lines(tmp_path / "a.jsonl", [row]))
    assert item.answers == ("New York City", "NYC")
    (item, _) = read(
        lines(tmp_path / "h.jsonl", [HOTPOT[0] | {"answers": ["Christiania"]}, HOTPOT[1]])
    )
    assert item.answers == ("Oslo", "Christiania")


@pytest.mark.parametrize(
    ("cell", "answers"),
    [
        ("['Oslo', 'Kristiania']", ("Oslo", "Kristiania")),
        ('["Oslo", "Kristiania"]', ("Oslo", "Kristiania")),
        ("""["O'Brien", 'Berg']""", ("O'Brien", "Berg")),
        ("{'text': ['Oslo'], 'answer_start': [3]}", ("Oslo",)),
        ("[1969.0]", ("1969",)),
        ("[Music] rises [it ends]", ("[Music] rises [it ends]",)),
        ("[[Oslo]] in [[Norway]]", ("[[Oslo]] in [[Norway]]",)),
        ("{{Oslo}}", ("{{Oslo}}",)),
        ("[0, 1)", ("[0, 1)",)),
        ("['Oslo' 'Kristiania']", None),  # as numpy spells it; Python would join the two
        ("['Oslo'\n 'Kristiania']", None),
        ("[Oslo, Kristiania]", None),
        ("['Oslo', nan]", None),
        ("{'text': array(['Oslo'], dtype=object)}", None),
        ("{'Oslo', 'Kristiania'}", None),  # a set has no order
    ],
)  # fmt: skip
def test_cells_that_spell_a_list(tmp_path, cell, answers):
    made = io.StringIO()
    csv.writer(made).writerows([["question", "answers"], ["Where?", cell]])
    (tmp_path / "t.csv").write_text(made.getvalue())
    if answers is None:
        with pytest.raises(SpecError, match="looks like a list and is none: write it as JSON"):
            read(tmp_path / "t.csv")
    else:
        assert read(tmp_path / "t.csv")[0].answers == answers


def test_numbers_are_answers_and_no_number_is_none(tmp_path):
    rows = [{"question": "When?", "answer": answer} for answer in (1969.0, 2.5, [3.0, "x"], -4)]
    found = read(lines(tmp_path / "a.jsonl", rows))
    assert [item.answers for item in found] == [("1969",), ("2.5",), ("3", "x"), ("-4",)]


def hub(tmp_path, shape, rows):
    if shape == "lines":
        return lines(tmp_path / "validation.jsonl", rows)
    import pandas as pd

    pd.DataFrame(rows).to_parquet(tmp_path / "validation.parquet")
    return tmp_path / "validation.parquet"


@pytest.mark.parametrize("format", [None, "squad"])
@pytest.mark.parametrize("shape", ["lines", "parquet"])
def test_squad_as_the_hub_has_it(tmp_path, shape, format):
    row = {"id": "56be", "title": "Harbor", "context": "It was built in 1820.", "question": "When?"}
    rows = [
        row | {"answers": {"text": [], "answer_start": []}},
        row | {"answers": {"text": ["1820", "in 1820"], "answer_start": [16, 13]}},
    ]
    none, some = read(hub(tmp_path, shape, rows), format=format)
    assert none.answers == ("",) and some.answers == ("1820", "in 1820")
    assert gold(none) == gold(some) == [(1, "It was built in 1820.")]
    assert some.metadata["format"] == "squad" and len(some.passages) == 1


def test_a_title_is_put_before_a_text_that_only_begins_with_its_letters(tmp_path):
    titles = [
        ("Go", "Google x"),
        ("Go", "Go is a game."),
        ("Go", "Go-playing"),
        ("", "x"),
        ("A", "A"),
    ]
    held = [{"title": title, "text": text} for title, text in titles]
    (item,) = read(
        lines(tmp_path / "a.jsonl", [{"question": "q", "answer": "x", "passages": held}])
    )
    assert [passage.text for passage in item.passages] == [
        "Go. Google x", "Go is a game.", "Go-playing", "x", "A"
    ]  # fmt: skip


def test_yes_and_no_are_words_of_any_text(tmp_path):
    """They neither order the hops nor mark a passage."""
    row = HOTPOT[1] | {"answer": "no", "question": "Is it?"}
    row["context"] = [["Aurora", ["There is no fog."]], ["Boreas", ["It is calm."]]]
    (item,) = read(lines(tmp_path / "h.jsonl", [row]))
    assert [(p.hop, p.text) for p in item.passages] == [
        (1, "Aurora. There is no fog."),
        (2, "Boreas. It is calm."),
    ]
    bare = {"question": "Is it?", "answer": "no", "passages": ["There is no fog.", "Calm."]}
    (item,) = read(lines(tmp_path / "a.jsonl", [bare]))
    assert gold(item) == []


def test_passages_with_the_answer_between_marks_are_gold(tmp_path):
    texts = ["Einstein\u2019s theory.", "An Einstein-like man.", "Albert.", "\u201cEinstein\u201d"]
    row = {"question": "Who?", "answer": "Einstein", "passages": texts}
    (item,) = read(lines(tmp_path / "a.jsonl", [row]))
    assert [passage.gold for passage in item.passages] == [True, True, False, True]


BAD = [
    (b"{not json}", "is not JSON"),
    (b"[1, 2]", "is no JSON object but list"),
    (b'{"question": "x", "answer": "\xff"}', "is not UTF-8 at byte"),
    (b'{"question": "x"}', "has no answer"),
    (b'{"question": "", "answer": "y"}', "has no question"),
    (b'{"question": 3, "answer": "y"}', "its question is 3"),
    (b'{"question": "x", "answer": true}', "write yes or no"),
    (b'{"question": "x", "answer": NaN}', "its answer is nan, not text: leave it out"),
    (b'{"question": "x", "answer": ["y", -Infinity]}', "its answer is -inf"),
    (b'{"question": "x", "answer": "y", "passages": 7}', "not a list"),
    (b'{"question": "x", "answer": "y", "passages": [{"words": "z"}]}', "has none of text, segment"),
    (b'{"question": "x", "answer": "y", "passages": [{"text": "z", "gold": "maybe"}]}', "gold mark"),
    (b'{"question": "x", "answer": "y", "passages": [{"text": "z", "kind": "odd"}]}', "of the kind"),
    (b'{"question": "x", "answer": "y", "passages": [{"text": "z", "hop": "one"}]}', "does not fit"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "says"), BAD, ids=[says for _, says in BAD])
def test_bad_lines_are_named_with_their_number(tmp_path, line, says):
    good = json.dumps(PLAIN[1]).encode()
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n".join([good, b"", line, good]) + b"\n")
    with pytest.raises(SpecError, match=rf"bad.jsonl, line 3: .*{says}.*bad='count'"):
        read(path)
    asked = task(path, bad="count")
    assert len(list(asked)) == 2 and len(list(asked)) == 2
    assert list(asked.bad) == ["line 3"] and says in asked.bad["line 3"]


def test_bad_rows_of_tables_and_arrays_have_places_too(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("question,answer\nWho?,Lena\nWhere?\nWhen?,now\n")
    asked = task(path, bad="count")
    assert len(list(asked)) == 2
    assert asked.bad == {"line 3": "has 1 cells and the header 2"}
    asked = task(whole(tmp_path / "a.json", [HOTPOT[0], 7, HOTPOT[1]]), bad="count")
    assert len(list(asked)) == 2 and list(asked.bad) == ["element 2"]
    held = json.loads(json.dumps(SQUAD))
    held["data"][0]["paragraphs"][0]["qas"][0]["question"] = None
    held["data"].append({"title": "no paragraphs"})
    asked = task(whole(tmp_path / "s.json", held), bad="count")
    assert len(list(asked)) == 1
    assert list(asked.bad) == ["article 1, paragraph 1, question 1", "article 2"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer.*git lfs"),
        ("a.jsonl", b"  \n", "is empty"),
        ("a.bin", b"\x00\x01", "is none of JSON lines"),
        ("a.json", b'{"a": 1', "is not JSON"),
        ("a.json", b'{"a":\n {"b": 1}}', "without a list `data`"),
        ("a.json", b'[{"question": "x", "answer": "y"}, {"question":', "element 2 is not JSON"),
        ("a.json", b'[{"question": "x", "answer": "y"} {"question": 1}]', "element 2 is not JSON"),
        ("a.json", b'[{"question": "\xff"}]', "is not UTF-8"),
        ("a.jsonl", b'{"who": "x", "say": "y"}\n', "none of input, query, question"),
        ("a.jsonl.gz", b"\x1f\x8b\x08\x00broken", "cannot be unpacked"),
        ("a.parquet", b"PAR1 and no more", "cannot be read as Parquet"),
        ("a.json", b'[{"question": "x", "answer": "y"},\n {"question": "x", "answer": "z"}]\n\n[{"q": 1}]', "array's 2 elements .*JSON lines"),
        ("a.json", b'[{"question": "x", "answer": "y"}]\n[{"q": 1}]', "line 1: is no JSON object but list"),
        ("a.json", b'[{"question": "x", "answer": "y"}] {"question": 1}', "after the array's 1 elements"),
        ("a.csv", b"question,question\na,b\n", "names the column 'question' twice"),
        ("a.csv", b"question,answer\na,\xff\n", "not UTF-8"),
    ],
)  # fmt: skip
def test_files_that_are_no_task(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpecError, match=says):
        read(tmp_path / name)


def damaged(content):
    """Packed bytes that go on with no deflate block: zlib's own error, after the content."""
    packing = zlib.compressobj(wbits=31)
    raw = packing.compress(content.encode()) + packing.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 16
    with pytest.raises(zlib.error):
        gzip.decompress(raw)
    return raw


LONG = " ".join(map(str, range(40000)))  # longer than the first look at a file
ROW = json.dumps({"question": "q", "answer": "a", "passages": [LONG]})


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json.gz", f"[{ROW}, {ROW}", "cannot be unpacked after element .*fetch it"),
        ("a.json.gz", json.dumps({"words": LONG, "data": []}, indent=1), "is not JSON"),
        ("a.csv.gz", f"question,answer,context\nq,a,{LONG}\n", "nothing can be read"),
        ("a.csv.gz", "", "cannot be unpacked"),
    ],
)
def test_packed_files_that_are_damaged(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(damaged(content))
    with pytest.raises(SpecError, match=says):
        read(tmp_path / name)


def test_of_packed_lines_those_before_the_damage_are_read(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(damaged(f"{ROW}\n{ROW}\n{ROW}"))
    asked = task(tmp_path / "a.jsonl.gz", bad="count")
    read_whole = len(list(asked))
    (place,) = asked.bad
    assert 1 <= read_whole <= 2 and place == f"line {read_whole + 1}"
    assert "nothing after it" in asked.bad[place]


@pytest.mark.parametrize("first", ["[1]", "{oops", "oops", '{"question": "x", "answer":'])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_bad_first_line_is_one_bad_line(tmp_path, name, first):
    good = json.dumps(PLAIN[1])
    (tmp_path / name).write_text(f"{first}\n\n{good}\n{good}\n")
    asked = task(tmp_path / name, bad="count")
    assert len(list(asked)) == 2 and list(asked.bad) == ["line 1"]
    with pytest.raises(SpecError, match=r"line 1: .*bad='count'"):
        read(tmp_path / name)


def test_a_row_of_empty_cells_is_bad_and_a_blank_line_is_nothing(tmp_path):
    (tmp_path / "t.csv").write_text("question,answer,context\nWho?,Lena,x\n\n,,\nWhen?,now,y\n")
    asked = task(tmp_path / "t.csv", bad="count")
    assert len(list(asked)) == 2 and list(asked.bad) == ["line 4"]


def test_half_a_letter_does_not_stop_the_pool(tmp_path):
    rows = [{"question": "q", "answer": "a", "passages": ["half \ud800", "whole"]}]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(rows[0]))
    assert sorted(task(path).pool()) == ["half \ud800", "whole"]


def test_names_that_are_no_task(tmp_path):
    with pytest.raises(SpecError, match=r"does not exist.*or synthetic/one-hop"):
        task(tmp_path / "nowhere.jsonl")
    with pytest.raises(SpecError, match="is a folder: name a file in it"):
        task(tmp_path)
    with pytest.raises(SpecError, match="expected one of synthetic/one-hop, synthetic/two-hop"):
        task("synthetic/ten-hop")
    with pytest.raises(SpecError, match="expected one of kilt, lost-in-the-middle, squad"):
        task(lines(tmp_path / "a.jsonl", PLAIN), format="xml")
    with pytest.raises(SpecError, match="expected refuse or count"):
        task("synthetic/one-hop", bad="ignore")
    with pytest.raises(SpecError, match="has no format: leave it out"):
        task("synthetic/one-hop", format="kilt")


@pytest.mark.parametrize(("name", "hops"), [("synthetic/one-hop", 1), ("synthetic/two-hop", 2)])
def test_made_items(name, hops):
    found = list(islice(task(name, seed=3), 5))
    again = list(islice(task(name, seed=3), 5))
    assert found == again and found != list(islice(task(name, seed=4), 5))
    for item in found:
        assert [hop for hop, _ in sorted(gold(item))] == list(range(1, hops + 1))
        assert {"random", "hard", "counterfactual"} <= {p.kind for p in item.passages}


def test_a_key_is_of_the_item_alone():
    one, two = islice(task("synthetic/one-hop"), 2)
    assert item_key(one) == item_key(Item.from_dict(json.loads(json.dumps(one.as_dict()))))
    assert item_key(one) != item_key(two)
    assert item_key(one) != item_key(one.arrange(range(len(one.passages) - 1)))


def test_the_pool_depends_neither_on_order_nor_on_repetition(tmp_path):
    rows = [{"question": "q", "answer": "a", "passages": [f"text {n}", f"text {n + 1}"]} for n in range(700)]  # fmt: skip
    one = task(lines(tmp_path / "one.jsonl", rows)).pool()
    two = task(lines(tmp_path / "two.jsonl", rows[::-1] + rows[:50])).pool()
    assert one == two and len(set(one)) == len(one) == POOL
    few = task(lines(tmp_path / "few.jsonl", rows[:3])).pool()
    assert sorted(few) == [f"text {n}" for n in range(4)]


def test_a_long_file_is_not_loaded(tmp_path):
    """Walking 30 MB takes little more than its longest line, as lines and as one array."""
    row = {"question": "q", "answer": "a", "passages": ["word " * 20000]}
    for path in (
        lines(tmp_path / "long.jsonl", [row] * 300),
        whole(tmp_path / "long.json", [row] * 300),
    ):
        assert path.stat().st_size > 30e6
        tracemalloc.start()
        count = sum(1 for _ in task(path))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 300
        assert peak < 5e6, path


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(st.dictionaries(st.text(max_size=4), json_values, max_size=4)), st.integers(1, 40))
def test_an_array_in_chunks_is_the_array_at_once(values, chunk):
    raw = json.dumps(values, ensure_ascii=False).encode()
    kept, readers.CHUNK = readers.CHUNK, chunk
    try:
        assert list(readers.read_elements("x.json", io.BytesIO(raw))) == values
    finally:
        readers.CHUNK = kept


def test_a_format_of_your_own_is_found_by_its_fields(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "FORMATS", dict(tasks.FORMATS))

    @aw.evaluation.register_format("trivia", fields=("question", "best"))
    def read_trivia(fields):
        return Item(fields["question"], (fields["best"],), ())

    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"question": "Who?", "best": "Ada"}))
    (item,) = task(path)
    assert item.answers == ("Ada",)
    assert [one.answers for one in task(path, format="trivia")] == [("Ada",)]
    with pytest.raises(SpecError, match="there is a format 'trivia' already"):
        aw.evaluation.register_format("trivia", fields=())(read_trivia)
    path.write_text(json.dumps({"best": "Ada"}))
    with pytest.raises(SpecError, match="none of input, query, question"):
        list(task(path))


def test_a_task_of_your_own(monkeypatch):
    monkeypatch.setattr(tasks, "TASKS", dict(tasks.TASKS))

    @aw.evaluation.register_task("counting/next")
    def make_counting(split, seed):
        return (Item(f"What follows {n}?", (str(n + 1),), ()) for n in range(seed, seed + 3))

    assert [item.answers[0] for item in task("counting/next", seed=5)] == ["6", "7", "8"]
    with pytest.raises(SpecError, match="there is a task 'counting/next' already"):
        aw.evaluation.register_task("counting/next")(make_counting)
