"""Draws docs/film.svg, the picture in the README: `make film`."""

import io
import re
from pathlib import Path

from rich.console import Console

import anchorwatch as aw
from anchorwatch.show import film

model = aw.load("tiny/llada")
ask = "Passage: Lena was born in Oslo.\nQuestion: Where was Lena born?\nAnswer:"
trace = aw.run(model, ask, aw.decoding.LowConfidence(length=16, steps=8))
console = Console(record=True, width=100, file=io.StringIO())
console.print(film(trace))
drawing = console.export_svg(title="anchorwatch show lena.trace")
drawing = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL)  # no outside request
Path(__file__).with_name("film.svg").write_text(drawing)
