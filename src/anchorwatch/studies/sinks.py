"""The claims of "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731)."""

from anchorwatch.studies import sinks_hidden, sinks_seen

CLAIMS = tuple(sorted((*sinks_seen.CLAIMS, *sinks_hidden.CLAIMS), key=lambda one: one.number))
