"""Runs: from a prompt and a decoding to a trace, live, replayed or resumed."""
