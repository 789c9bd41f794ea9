"""A first run: a small diffusion model answers, and the terminal shows every frame of it."""

import anchorwatch as aw
from anchorwatch.trace.render_terminal import show

model = aw.load("lab/toy-mdm")
ask = aw.worlds.World("held-out")[0].prompt()
trace = aw.run(model, ask, aw.decoding.LowConfidence(length=8))
show(trace)
