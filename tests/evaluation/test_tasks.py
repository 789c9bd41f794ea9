"""Tasks: every format becomes the one schema, streamed, and nothing is dropped in silence."""

import csv
import io
import json
import tracemalloc
import warnings
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorwatch.errors import AnchorwatchWarning, SpecError
from anchorwatch.evaluation import readers
from anchorwatch.evaluation.tasks import POOL, item_key, task
from anchorwatch.worlds import Item
from question_files import HOTPOT, KILT, LOST, PLAIN, SQUAD, lines, packed, whole


def read(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return list(task(path, **options))


def gold(item):
    return [(passage.hop, passage.text) for passage in item.passages if passage.gold]


def test_kilt_with_segments(tmp_path):
    one, two = read(lines(tmp_path / "nq_dev_psg.jsonl", KILT))
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
    import gzip

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
    rows = [KILT[0] | {"weather": "fog"}, KILT[1] | {"weather": "rain", "tide": 3}]
    rows[1] = rows[1] | {"passage": [{"segment": "The reef is south.", "colour": "red"}]}
    asked = task(lines(tmp_path / "k.jsonl", rows))
    with pytest.warns(AnchorwatchWarning) as said:
        list(asked)
        list(asked)
    assert [str(one.message).partition(": ")[2] for one in said] == [
        "nothing reads weather of the format kilt",
        "nothing reads passage[].colour, tide of the format kilt",
    ]


BAD = [
    (b"{not json}", "is not JSON"),
    (b"[1, 2]", "is no JSON object but list"),
    (b'{"question": "x", "answer": "\xff"}', "is not UTF-8 at byte"),
    (b'{"question": "x"}', "has no answer"),
    (b'{"question": "", "answer": "y"}', "has no question"),
    (b'{"question": 3, "answer": "y"}', "its question is 3"),
    (b'{"question": "x", "answer": true}', "write yes or no"),
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
        ("a.csv", b"question,question\na,b\n", "names the column 'question' twice"),
        ("a.csv", b"question,answer\na,\xff\n", "not UTF-8"),
    ],
)
def test_files_that_are_no_task(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpecError, match=says):
        read(tmp_path / name)


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
    assert item_key(one) != item_key(one.arranged(range(len(one.passages) - 1)))


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
        assert list(readers.elements("x.json", io.BytesIO(raw))) == values
    finally:
        readers.CHUNK = kept
