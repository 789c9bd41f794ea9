"""The film strip of a notebook: complete, escaped, and free of outside requests."""

import re

import anchorwatch as aw
from strategies import load


def test_a_notebook_shows_every_frame_with_its_roles():
    trace = aw.run(load("tiny/llada"), "the anchor", aw.decoding.LowConfidence(4))
    html = trace._repr_html_()
    assert html.count("<li>") == 5
    for role in ("prompt", "masked", "fresh", "written"):
        assert f'<span class="{role}">' in html
    last = html.rsplit("<li>", 1)[1]
    assert trace.text.split()[0] in last


def test_left_out_frames_are_said():
    trace = aw.run(load("tiny/llada"), "the", aw.decoding.LowConfidence(40), probes=())
    assert "24 of 41 frames shown" in trace._repr_html_()


def test_foreign_text_is_escaped_and_nothing_is_fetched():
    hostile = "</span><script>alert(1)</script><img src=x onerror=y> \u202e \x1b[31m"
    trace = aw.run(load("tiny/llada"), hostile, aw.decoding.LowConfidence(2), probes=())
    html = trace._repr_html_()
    assert "<script" not in html
    assert "<img" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert not re.search(r"(src|href)\s*=", html.replace("&lt;img src=x", ""))
