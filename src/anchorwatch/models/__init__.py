"""Load a checkpoint by family, prove it, and get `logprobs[p]` for the token AT p."""

from anchorwatch.models.loading import load
from anchorwatch.models.model import Model

__all__ = ["Model", "load"]
