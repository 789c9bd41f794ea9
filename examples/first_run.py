"""A first run: a tiny diffusion model writes, and the terminal shows every frame of it."""

import anchorwatch as aw
from anchorwatch.show import show

model = aw.load("tiny/llada")
ask = "Passage: Lena was born in Oslo.\nQuestion: Where was Lena born?\nAnswer:"
trace = aw.run(model, ask, aw.decoding.LowConfidence(length=16, steps=16, block=8))
show(trace)
