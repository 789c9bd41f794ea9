"""Runs with canvas edits as plain loops over one sequence, at temperature 0.

The canvas as the run itself writes it (`own`) and the one that is read (`shown`, with tokens
swapped) are two lists here. Returns frames, commit steps and log-probabilities.
"""

import torch

from anchorwatch import decoding as kinds
from anchorwatch import edits


def written(model, prompt, decoding, asked):
    run = _Run(model, prompt, decoding, asked)
    if isinstance(decoding, kinds.LowConfidence):
        run.evenly()
    elif isinstance(decoding, kinds.DreamOrder):
        run.dream()
    else:
        run.threshold()
    return [*run.frames, run.result()], run.when, run.logprob


class _Run:
    def __init__(self, model, prompt, decoding, asked):
        self.model, self.decoding, self.edits = model, decoding, asked
        self.mask, self.prompt = model.mask_id, len(prompt)
        self.own = [*prompt, *[self.mask] * decoding.length]
        self.frames, self.when, self.logprob, self.swaps = [], {}, {}, {}
        self.owed = 0

    @property
    def step(self):
        return len(self.frames)

    def result(self):
        return [self.swaps.get(p, token) for p, token in enumerate(self.own)]

    def masked(self, places=None):
        places = range(len(self.own)) if places is None else places
        return [p for p in places if self.own[p] == self.mask]

    def delayed(self, p):
        return any(
            isinstance(e, edits.delay_commit) and p in e.positions and self.step < e.until
            for e in self.edits
        )

    def frozen(self, step):
        return any(
            isinstance(e, edits.freeze_canvas) and (e.steps is None or step in e.steps)
            for e in self.edits
        )

    def forced(self):
        found = {}
        for e in self.edits:
            if isinstance(e, edits.force_commit) and e.step == self.step:
                found[e.position] = e.token
        return found

    def read(self):
        """One forward pass: (guess, probability of it, log-probabilities) of every position."""
        share = (self.decoding.length - len(self.masked())) / self.decoding.length
        self.swaps = {
            e.position: e.token
            for e in self.edits
            if isinstance(e, edits.swap_token) and e.acts_at(self.step, share)
        }
        logits = self.model.logits(torch.tensor(self.result()))
        self.frames.append(self.result())
        wide = logits.double() if isinstance(self.decoding, kinds.Threshold) else logits
        sure, guess = torch.softmax(wide, -1).max(-1)
        return guess.tolist(), sure.tolist(), torch.log_softmax(logits.float(), -1)

    def commit(self, tokens, logs):
        for p, token in tokens.items():
            if token != self.mask:
                self.own[p] = token
                self.when[p] = len(self.frames) - 1
                self.logprob[p] = float(logs[p, token])

    def surest(self, places, sure):
        return sorted(places, key=lambda p: -sure[p])

    def evenly(self):
        block = self.decoding.block or self.decoding.length
        each = self.decoding.num_passes // (self.decoding.length // block)
        for start in range(self.prompt, len(self.own), block):
            opened = range(self.prompt, start + block)
            waiting = len(self.masked(range(start, start + block)))
            for nth in range(each):
                quota = waiting // each + (nth < waiting % each)
                self.counted(opened, quota, carries=True)

    def dream(self):
        steps = self.decoding.num_passes
        times = torch.linspace(1, self.decoding.eps, steps + 1)
        for step in range(steps):
            share = 1 - times[step + 1] / times[step]
            left = torch.tensor(float(len(self.masked())))
            quota = int(left) if step == steps - 1 else int(left * share)
            self.counted(range(self.prompt, len(self.own)), quota, carries=False)

    def counted(self, opened, quota, carries):
        """A step that has to commit some number, and what it has been owing."""
        self.owed = (self.owed if carries else 0) + quota
        frozen, forced = self.frozen(self.step), self.forced()
        able = [p for p in self.masked(opened) if not self.delayed(p) and p not in forced]
        guess, sure, logs = self.read()
        if frozen:
            return
        self.owed -= sum(p in opened for p in forced)
        chosen = self.surest(able, sure)[: max(self.owed, 0)]
        self.owed -= len(chosen)
        self.commit(forced | {p: guess[p] for p in chosen}, logs)

    def threshold(self):
        block = self.decoding.block or self.decoding.length
        starts = list(range(self.prompt, len(self.own), block))
        late = []
        for later, start in zip(reversed(range(len(starts))), starts, strict=True):
            mine = range(start, start + block)
            self.fill(mine, range(self.prompt, start + block), later)
            late += [p for p in self.masked(mine) if self.delayed(p)]
        self.fill(late, range(self.prompt, len(self.own)), 0, waits=True)

    def fill(self, mine, opened, later, waits=False):
        idle, last = 0, self.decoding.num_passes
        while idle < self.decoding.patience and self.step < last:
            left = [p for p in self.masked(mine) if not self.delayed(p)]
            if not (self.masked(mine) if waits else left):
                return
            frozen, forced, before = self.frozen(self.step), self.forced(), len(self.masked())
            least = self.needed(len(left), later) - sum(p in opened for p in forced)
            least = max(least, int(not forced))
            able = [p for p in self.masked(opened) if not self.delayed(p) and p not in forced]
            guess, sure, logs = self.read()
            if frozen:
                continue
            chosen = {p for p in able if sure[p] >= self.decoding.threshold}
            chosen |= set(self.surest(able, sure)[:least])
            self.commit(forced | {p: guess[p] for p in chosen}, logs)
            idle += bool(left) and len(self.masked()) == before

    def needed(self, left, later):
        """Commits without which the passes would not do, where some were spent waiting."""
        if not any(isinstance(e, edits.delay_commit | edits.freeze_canvas) for e in self.edits):
            return 0
        passes = sum(not self.frozen(s) for s in range(self.step, self.decoding.num_passes))
        delayed = any(self.delayed(p) for p in self.masked())
        needed = left - (passes - later - delayed) + 1
        return needed if needed > 1 else 0
