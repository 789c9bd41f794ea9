"""Attention floating: Dai and others, 2026 (arXiv 2601.07894)."""
