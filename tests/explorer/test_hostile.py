"""Foreign text outside the browser: terminal, notebook, header and tables hold marks, not controls."""

import ast
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from anchorwatch.explorer import encode
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import Run
from anchorwatch.trace import render_terminal as show
from anchorwatch.trace.escape import visible
from synthetic_traces import HOSTILE, hostile_trace, large_trace, small_trace

CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]")
"""What may move a cursor, turn a line, or is no text; line breaks are kept."""


def texts(node):
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for one in node.values() if isinstance(node, dict) else node:
            yield from texts(one)


def test_no_text_of_a_header_is_more_than_text():
    told = Run(from_memory(hostile_trace())).header()
    for text in texts(told):
        assert not CONTROLS.search(text), ascii(text)
    assert len(json.dumps(told)) < 200_000  # a token of a megabyte is clipped


def test_the_terminal_gets_marks():
    from rich.console import Console

    held = io.StringIO()
    console = Console(file=held, force_terminal=True, width=200, color_system=None)
    for step in range(hostile_trace().num_steps + 1):
        console.print(show.frame(hostile_trace(), step))
    said = re.sub(r"\x1b\[[0-9;]*m", "", held.getvalue())  # rich's own colours
    assert not CONTROLS.search(said)
    assert "[red]markup[/red]" in said  # as it stands: no markup is read
    assert visible("\x1b[31mred") in said


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)


def test_a_notebook_has_one_frame_whatever_tokens_say():
    bundle = hostile_trace().show(hostile_trace())._repr_mimebundle_()
    assert Elements(bundle["text/html"]).tags == ["iframe"]
    assert not CONTROLS.search(bundle["text/plain"])


def test_a_hundred_thousand_tokens_are_binned():
    trace = large_trace(steps=2, length=100_000, layers=1, heads=1, groups=("all",))
    run = Run(from_memory(trace))
    told = run.header()
    assert (told["width"], told["bins"]) == (98, 1021)
    arrays, meta = encode.unpack(run.packet("layer-0"))
    assert arrays["codes"].shape == (2, 1021)
    shares = trace["received"].values[:, 0, 0, 0].astype(np.float16).astype(np.float32)
    assert meta["most"] == pytest.approx(shares.max())
    last = encode.unpack(run.packet(f"part-0-mean-0-{100_000 // 64}"))[0]["shares"]
    np.testing.assert_array_equal(last, shares[:, 64 * (100_000 // 64) :])


@pytest.mark.parametrize("text", [text for text in HOSTILE if len(text) < 200])
def test_tokens_are_told_apart_and_come_back(text):
    """What is shown of a token is one text for one token, and its escaped form says which."""
    told = next(
        one
        for one in Run(from_memory(hostile_trace())).header()["tokens"]
        if one["id"] == HOSTILE.index(text) + 1
    )
    assert told["text"] == visible(text)
    if "escaped" in told and len(text) < 100:
        spelled = f'"{told["escaped"]}"' if "'" in text else f"'{told['escaped']}'"
        assert ast.literal_eval(spelled) == text


def identities(texts, split=None):
    """What the page compares tokens of two runs by."""
    trace = small_trace(texts=texts)
    manifest = trace.manifest | {"token_bytes": split or {}}
    told = Run(from_memory(type(trace)(trace.dataset(), manifest))).header()["tokens"]
    return {one["id"]: one.get("digest", one["text"]) for one in told}


def test_tokens_that_look_alike_are_told_apart():
    long = "x" * 200
    texts = {1: f"{long}a", 2: f"{long}b", 3: "\x00", 4: "\x01", 5: "·", 6: "\n", 7: "⏎\n"}
    texts |= {8: "\ufffd", 9: "\ufffd", 10: "\ud800", 11: "\udfff"}
    found = identities(texts, {"8": "e2", "9": "82"})
    assert len({found[at] for at in texts}) == len(texts)
    assert found == identities(texts, {"8": "e2", "9": "82"})
    assert found[12] == " w12"  # what is shown whole needs no digest
