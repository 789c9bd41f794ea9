"""Attention sinks: Rulli and others, 2025 (arXiv 2510.15731)."""
