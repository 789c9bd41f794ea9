"""From a prompt to a trace: decodings, the one loop, replay, fork and resume.

In the order of a run: `prepare.py` checks the request and `plan.py` says what it will cost.
`loop.py` runs the forward passes, with the schedule and policy of a decoding (`decoding.py`) on one
sequence (`sequence.py`); edits of the canvas act before each step (`canvas_editor.py`).
`build_trace.py` makes the trace, and `streaming.py` writes it to disk while it runs. `forced.py` is
for runs whose first steps are known: replays, forks (`replay.py`) and runs that are resumed.
`parse.py` reads edits and decodings from words.

How to add a decoding: see `decoding.py`. The public functions are in `run.py` and `replay.py`.
"""
