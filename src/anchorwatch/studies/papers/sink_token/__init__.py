"""The sink token: Zhang and others, 2026 (arXiv 2601.19657)."""
