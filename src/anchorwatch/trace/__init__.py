"""The record of a run: what it holds, how it is stored, checked, compared and shown. No torch."""
