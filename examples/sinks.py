"""Do sinks absorb more than indifferent attention would? A diffusion model beside a causal one."""

import anchorwatch as aw

PROMPTS = [f"the {who} at anchor in the" for who in "ship crew captain lookout mate pilot".split()]
how = {
    "tiny/llada": aw.decoding.LowConfidence(length=12, steps=12),
    "tiny/arm": aw.decoding.LeftToRight(length=12, stop=False),
}
traces = [t for name in how for t in aw.run_many(aw.load(name), PROMPTS, how[name])]
table = aw.metrics.absorption(traces, sets=("first", "top1"), by=())
print(table[["model", "quantity", "value", "null", "lift", "low", "high", "n"]].round(3))  # noqa: T201
