"""How far long work is: a bar on a terminal, a line a minute in a log."""

import sys
import time

from anchorwatch.trace.progress_bar import Progress


def test_a_bar_inside_a_bar_is_silent(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("outer", total=2) as outer:
        with Progress("inner", total=2) as inner:
            inner.advance()
        assert outer._bar is not None and inner._bar is None
        outer.advance()
    with Progress("next", total=1) as later:
        assert later._bar is not None


def test_a_log_has_a_line_a_minute_with_the_time_left(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress("gathering", total=40, done=10) as bar:
        for _ in range(5):
            now[0] += 24
            bar.advance()
            with Progress("writing", total=2) as inner:
                inner.advance()
    said = capsys.readouterr().err.splitlines()
    assert said == ["gathering: 32%, 11 min left"]  # 3 in 72 s: 27 more take 648


def test_a_line_in_a_log_has_the_note(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress("training", total=2) as bar:
        now[0] += 60
        bar.advance("loss 2.345")
    assert capsys.readouterr().err == "training: 50%, 1 min left, loss 2.345\n"


def test_short_work_and_work_without_a_total_say_nothing_in_a_log(monkeypatch, capsys):
    with Progress("writing", total=2) as bar:
        bar.advance()
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress("training", total=None) as bar:
        now[0] += 100
        bar.advance()
    assert capsys.readouterr().err == ""
