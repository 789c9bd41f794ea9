"""Do the keys that receive most matter more than as many others? Hidden, beside a control."""

import anchorwatch as aw

PROMPTS = [f"the {who} at anchor in the" for who in "ship crew captain lookout mate pilot".split()]
model, how = aw.load("tiny/llada"), aw.decoding.LowConfidence(length=8, steps=8)
effect = aw.effect(model, PROMPTS, how, aw.edits.hide_sinks(1), doses=(1, 2, 4))
print(effect)  # noqa: T201
shown = effect.doses[effect.doses["outcome"] == "kl"]
print(shown[["k", "edited", "control", "did", "did_low", "did_high"]].round(2))  # noqa: T201
