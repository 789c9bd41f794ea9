"""A figure's file: what made it is inside, the same table gives the same bytes, old or new."""

import json
import os
import re
import struct
import subprocess
import sys
import zlib

import matplotlib
import numpy as np
import pandas as pd
import pytest

import anchorwatch as aw
from anchorwatch import figures, rules
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.figures import style
from anchorwatch.figures.figure import Figure
from anchorwatch.trace.provenance import LONGEST_PROMPT, origin

KINDS = ("pdf", "png", "svg")


@pytest.fixture(scope="module")
def figure(trace):
    return figures.sink_map(trace, layer=1, rule=rules.ratio(2))


@style.look()
def tiny_figure(settings, traces=(), title=""):
    drawn, (ax,) = style.sheet(1, 1)
    ax.set_title(title)
    return Figure(drawn, pd.DataFrame(), name="tiny", settings=settings, traces=traces)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_says_what_made_it(figure, trace, tmp_path, kind):
    path = figure.save(tmp_path / f"sinks.{kind}")
    told = figures.whence(path)
    assert told == figure.whence
    assert told["figure"] == "sink_map"
    assert told["settings"] == {"layer": 1, "head": None, "group": "all", "rule": "ratio:2"}
    assert told["anchorwatch"] == aw.__version__
    assert told["traces"] == [origin(trace)]
    held = told["traces"][0]
    assert held["digest"] == trace.digest()
    assert held["weights"] == trace.manifest["model"]["weights"]
    assert (held["model"], held["seed"], held["prompt"]) == ("tiny/llada", 0, "the anchor holds")
    assert held["decoding"] == trace.manifest["decoding"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "prompt",
    [
        "(a) \\(b\\) \\\\ ))((",
        "</dc:description><script>&amp;",
        "你好 😀 \ud800 \x00\x1b[31m",
        "a\nb\r\nc",
    ],
    ids=["brackets", "markup", "unicode", "lines"],
)
def test_any_prompt_comes_back(tmp_path, kind, prompt):
    made = tiny_figure({"word": prompt}, [{"digest": "0", "prompt": prompt}])
    told = figures.whence(made.save(tmp_path / f"a.{kind}"))
    assert told["settings"]["word"] == prompt == told["traces"][0]["prompt"]


def test_a_long_prompt_is_clipped(trace):
    manifest = trace.manifest | {"prompt_text": "a" * 1000}
    assert len(origin(type(trace)(trace.dataset(), manifest))["prompt"]) == LONGEST_PROMPT


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_table_gives_the_same_bytes(trace, tmp_path, kind):
    first = figures.sink_map(trace, layer=1, rule=rules.ratio(2))
    second = figures.sink_map(trace, layer=1, rule=rules.ratio(2))
    one = first.save(tmp_path / f"a.{kind}").read_bytes()
    assert one == first.save(tmp_path / f"b.{kind}").read_bytes()
    assert one == second.save(tmp_path / f"c.{kind}").read_bytes()


def test_another_process_gives_the_same_bytes(trace, tmp_path):
    trace.write(tmp_path / "a.trace")
    code = "import sys, anchorwatch as aw\nfrom anchorwatch import figures\n"
    code += "made = figures.sink_map(aw.read(sys.argv[1] + '/a.trace'), layer=1)\n"
    code += "[made.save(f'{sys.argv[1]}/{sys.argv[2]}.{k}') for k in ('pdf', 'svg', 'png')]\n"
    code += "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules"
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": seed}
        command = [sys.executable, "-c", code, str(tmp_path), seed]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    for kind in KINDS:
        assert (tmp_path / f"1.{kind}").read_bytes() == (tmp_path / f"2.{kind}").read_bytes()


def test_whence_needs_no_matplotlib_and_importing_us_does_not_either(figure, tmp_path):
    path = figure.save(tmp_path / "a.pdf")
    code = "import sys, anchorwatch\nfrom anchorwatch import figures\n"
    code += f"figures.whence({str(path)!r})\nprint('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


def test_without_matplotlib_it_says_what_to_install():
    code = "import sys\nsys.modules['matplotlib'] = None\n"
    code += "from anchorwatch import figures\nfigures.sink_map"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install matplotlib" in done.stderr


def test_everything_public_is_there():
    assert dir(figures) == sorted(figures.__all__)
    assert all(getattr(figures, name) is not None for name in figures.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = figures.nothing


def test_settings_of_matplotlib_are_left_alone(trace):
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 33, "text.usetex": True, "axes.facecolor": "red"}):
        odd = figures.sink_map(trace, layer=1)._repr_svg_()
        assert matplotlib.rcParams["font.size"] == 33
    assert dict(matplotlib.rcParams) == before
    assert odd == figures.sink_map(trace, layer=1)._repr_svg_()


def test_pdf_has_truetype_fonts_and_no_date(figure, tmp_path):
    raw = figure.save(tmp_path / "a.pdf").read_bytes()
    assert b"/CIDFontType2" in raw and b"/Type3" not in raw
    assert b"CreationDate" not in raw


def test_svg_text_is_text(figure, tmp_path):
    text = figure.save(tmp_path / "a.svg").read_text()
    assert ">␣anchor</text>" in text
    assert "<dc:date>" not in text


def test_a_notebook_sees_it(figure):
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert "<svg" in figure._repr_svg_()
    assert repr(figure).startswith(
        "Figure sink_map(group=all, head=None, layer=1, rule=ratio:2)  of "
    )
    assert repr(tiny_figure({})) == "Figure tiny()  of no trace"


def test_what_a_figure_holds_cannot_be_changed_from_outside(figure):
    held = figure.data
    held["value"] = -1
    figure.whence["figure"] = "other"
    assert (figure.data["value"] >= 0).all()
    assert figure.whence["figure"] == "sink_map"


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.pdf.bak", ".svg"])
def test_another_suffix_is_refused_and_the_good_ones_named(figure, tmp_path, name):
    with pytest.raises(SpecError, match=r"ends in \.pdf, \.png, \.svg"):
        figure.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_an_upper_case_suffix_works(figure, tmp_path):
    assert figures.whence(figure.save(tmp_path / "A.PDF")) == figure.whence


def test_a_missing_folder_and_a_folder_in_the_way_are_named(figure, tmp_path):
    with pytest.raises(SpecError, match="does not exist: make it first"):
        figure.save(tmp_path / "nowhere" / "a.pdf")
    (tmp_path / "a.pdf").mkdir()
    with pytest.raises(SpecError, match="is a folder: choose another name"):
        figure.save(tmp_path / "a.pdf")


def test_saving_replaces_and_a_failure_leaves_the_old_one(figure, tmp_path, monkeypatch):
    path = tmp_path / "a.svg"
    path.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "no space left")))
        with pytest.raises(OSError, match="no space left"):
            figure.save(path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.svg"]
    figure.save(path)
    assert figures.whence(path) == figure.whence


def test_settings_that_cannot_be_written_are_refused():
    with pytest.raises(SpecError, match="give finite numbers, text, lists and None"):
        tiny_figure({"eps": float("nan")})
    with pytest.raises(SpecError, match="the settings of tiny cannot be written down"):
        tiny_figure({"eps": object()})
    assert tiny_figure({"layers": np.arange(2)}).whence["settings"] == {"layers": [0, 1]}


NOT_OURS = {
    "empty.pdf": b"",
    "text.svg": b"hello",
    "bare.pdf": b"%PDF-1.4\ntrailer\n<< /Info 1 0 R >>",
    "loop.pdf": b"%PDF-1.4\n1 0 obj << /Keywords ((((( trailer << /Info 1 0 R >>",
    "keywords.pdf": b"%PDF-1.4\n1 0 obj << /Keywords (cats) >> endobj trailer << /Info 1 0 R >>",
    "deep.pdf": b"%PDF-1.4\n1 0 obj << /Keywords ("
    + b"[" * 100_000
    + b") >> endobj trailer << /Info 1 0 R >>",
    "short.png": b"\x89PNG\r\n\x1a\n\xff\xff\xff\xfftEXt",
    "cut.svg": b"<svg><metadata>",
    "other.svg": b'<svg xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:description>[1]'
    b"</dc:description></svg>",
    "half.svg": b'<svg xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:description>'
    b'{"anchorwatch": "1", "figure": "a", "settings": {}, "traces": [3]}</dc:description></svg>',
}


@pytest.mark.parametrize("name", NOT_OURS)
def test_a_file_we_did_not_make_is_said_so(tmp_path, name):
    (tmp_path / name).write_bytes(NOT_OURS[name])
    with pytest.raises(
        TraceError, match=r"reads .pdf, .png and .svg files that `figure.save` wrote"
    ):
        figures.whence(tmp_path / name)


def test_a_figure_of_plain_matplotlib_is_said_so(tmp_path):
    for kind in KINDS:
        matplotlib.figure.Figure().savefig(tmp_path / f"a.{kind}")
        with pytest.raises(TraceError, match="does not say what made it"):
            figures.whence(tmp_path / f"a.{kind}")


def test_no_file_is_said_so(tmp_path):
    for path in (tmp_path, tmp_path / "a.pdf"):
        with pytest.raises(TraceError, match=r"expected a .pdf, .png or .svg file"):
            figures.whence(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_torn_file_tells_nothing_wrong(figure, tmp_path, kind):
    """Cut anywhere, a file says what made it or that it does not, never something else."""
    whole = figure.save(tmp_path / f"a.{kind}").read_bytes()
    torn = tmp_path / f"torn.{kind}"
    for size in np.linspace(0, len(whole) - 1, 60).astype(int).tolist():
        torn.write_bytes(whole[:size])
        try:
            assert figures.whence(torn) == figure.whence
        except TraceError:
            continue


def test_a_png_whose_record_was_changed_is_not_believed(figure, tmp_path):
    raw = figure.save(tmp_path / "a.png").read_bytes()
    assert raw.count(b"ratio:2") == 1
    (tmp_path / "a.png").write_bytes(raw.replace(b"ratio:2", b"ratio:3"))
    with pytest.raises(TraceError, match="does not say what made it"):
        figures.whence(tmp_path / "a.png")


def test_pdf_strings_are_read_as_pdf_spells_them(tmp_path):
    record = {"anchorwatch": "1", "figure": "a(b)", "settings": {"c": "(d(e))"}, "traces": []}
    text = json.dumps(record).replace("a(b)", "a\\050b\\)").replace(", ", ",\\\n ")
    (tmp_path / "a.pdf").write_bytes(
        b"%PDF-1.4\n7 0 obj\n<< /Keywords (" + text.encode() + b") >>\nendobj\n"
        b"trailer\n<< /Root 1 0 R /Info 7 0 R >>\n"
    )
    assert figures.whence(tmp_path / "a.pdf") == record


def test_png_chunks_are_sound(figure, tmp_path):
    raw = figure.save(tmp_path / "a.png").read_bytes()
    at = raw.index(b"tEXtanchorwatch")
    size = struct.unpack(">I", raw[at - 4 : at])[0]
    body = raw[at : at + 4 + size]
    assert zlib.crc32(body) == int.from_bytes(raw[at + 4 + size : at + 8 + size], "big")
    assert re.fullmatch(rb"[\x20-\x7e\x00]+", body)
