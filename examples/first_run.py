"""A first run: a small diffusion model writes a story, and the terminal shows every frame of it."""

import anchorwatch as aw
from anchorwatch.trace.render_terminal import show

model = aw.load("lab/tales-mdm")
begin = "Once upon a time, there was a little girl named Lily. She"
trace = aw.run(model, begin, aw.decoding.LowConfidence(length=16, forbid_end=True))
show(trace)
