"""Where numbers and pictures come from: what they say of the traces that made them."""

from __future__ import annotations

from typing import Any

from anchorwatch.trace.trace import Trace

LONGEST_PROMPT = 200
"""Characters of a prompt that are kept."""


def origin(trace: Trace) -> dict[str, Any]:
    """What tables and figures say of a trace: enough to find it, and to make it again."""
    model, prompt = trace.manifest["model"], trace.prompt
    clipped = prompt if len(prompt) <= LONGEST_PROMPT else f"{prompt[: LONGEST_PROMPT - 1]}…"
    return {
        "digest": trace.digest(),
        "model": model["source"],
        "weights": model["weights"],
        "prompt": clipped,
        "decoding": trace.manifest["decoding"],
        "seed": trace.seed,
    }
