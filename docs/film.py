"""Draws docs/film.svg, the picture in the README: `make film`."""

import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

import anchorwatch as aw
from anchorwatch.trace.render_terminal import film

BLACK, GREY, PAPER = (24, 24, 24), (125, 125, 125), (215, 215, 215)
YELLOW, CYAN = (245, 212, 90), (105, 205, 215)
THEME = TerminalTheme(
    background=(36, 36, 36),
    foreground=PAPER,
    normal=[BLACK, *[PAPER] * 7],
    bright=[GREY, PAPER, PAPER, YELLOW, PAPER, PAPER, CYAN, PAPER],
)

model = aw.load("lab/tales-mdm")
prompt = "Once upon a time, there was a little girl named Lily. She"
trace = aw.run(model, prompt, aw.decoding.LowConfidence(length=16, steps=16))
console = Console(
    record=True,
    width=100,
    file=io.StringIO(),
    force_terminal=True,  # in colour, whatever the environment says
    color_system="truecolor",
    no_color=False,
)
console.print(film(trace))
drawing = console.export_svg(title="anchorwatch show lily.trace", theme=THEME, unique_id="film")
drawing = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL)  # no outside request
Path(__file__).with_name("film.svg").write_text(drawing)
