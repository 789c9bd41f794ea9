"""The authors' samplers as plain loops over one sequence, with torch's global generator.

Slow and obvious twins of anchorwatch.generation.decoding, written from the papers and the released scripts'
behaviour. `ask(canvas)` returns aligned logits [1, T, V]. Each returns every canvas it saw, the
result last.
"""

import torch


def llada(ask, prompt, mask_id, *, length, steps, block, temperature, guidance, order):
    canvas = torch.tensor([prompt + [mask_id] * length])
    is_prompt = canvas != mask_id
    steps_each = steps // (length // block)
    seen = [canvas.clone()]
    for start in range(len(prompt), len(prompt) + length, block):
        waiting = int((canvas[0, start : start + block] == mask_id).sum())
        for step in range(steps_each):
            count = waiting // steps_each + (1 if step < waiting % steps_each else 0)
            if guidance > 0:
                blind = canvas.clone()
                blind[is_prompt] = mask_id
                both = ask(torch.cat([canvas, blind]))
                logits = both[1:] + (guidance + 1) * (both[:1] - both[1:])
            else:
                logits = ask(canvas)
            noisy = logits
            if temperature > 0:
                u = torch.rand_like(logits, dtype=torch.float64)
                noisy = logits.double().exp() / (-torch.log(u)) ** temperature
            guess = noisy.argmax(-1)
            if order == "low_confidence":
                sure = torch.softmax(logits, -1).gather(-1, guess[..., None])[..., 0]
            else:
                sure = torch.rand(guess.shape)
            sure[:, start + block :] = -torch.inf
            sure = torch.where(canvas == mask_id, sure, -torch.inf)
            for position in torch.topk(sure[0], count).indices.tolist():
                canvas[0, position] = guess[0, position]
            seen.append(canvas.clone())
    return torch.cat(seen)


def dream(
    ask,
    prompt,
    mask_id,
    *,
    length,
    steps,
    algorithm,
    eps=1e-3,
    temperature=0.0,
    top_p=None,
    top_k=None,
    algorithm_temperature=None,
):
    canvas = torch.tensor([prompt + [mask_id] * length])
    times = torch.linspace(1, eps, steps + 1)
    seen = [canvas.clone()]

    def draw(logits):
        if temperature > 0:
            logits = logits / temperature
        if top_p is not None and top_p < 1:
            for row in logits:
                mass = 0.0
                for place, token in enumerate(row.argsort(descending=True).tolist()):
                    share = torch.softmax(row, -1)[token] if place == 0 else shares[token]
                    shares = torch.softmax(row, -1) if place == 0 else shares
                    if place and mass > top_p:
                        row[token] = torch.finfo(row.dtype).min
                    mass += float(share)
        if top_k is not None:
            least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
            logits = torch.where(logits < least, torch.finfo(logits.dtype).min, logits)
        shares = torch.softmax(logits, -1)
        if temperature > 0:
            guess = torch.distributions.Categorical(probs=shares).sample()
        else:
            guess = shares.max(-1).indices
        return shares, guess

    for step in range(steps):
        masked = canvas == mask_id
        logits = ask(canvas)[masked].clone()
        share = 1 - times[step + 1] / times[step]
        last = step == steps - 1
        if algorithm == "origin":
            taken = torch.rand(int(masked.sum())) < (1 if last else share)
            written = torch.full((int(masked.sum()),), mask_id)
            written[taken] = draw(logits[taken])[1]
            canvas[masked] = written
        else:
            shares, guess = draw(logits)
            if algorithm == "maskgit_plus":
                sure = shares.gather(-1, guess[:, None])[:, 0]
            elif algorithm == "topk_margin":
                best = shares.sort(-1, descending=True).values
                sure = best[:, 0] - best[:, 1]
            else:
                sure = (shares * torch.log(shares + 1e-10)).sum(-1)
            left = masked.sum() / 1
            count = int(left) if last else int(left * share)
            row = torch.full(canvas.shape, -torch.inf)
            row[masked] = sure
            if count:
                if algorithm_temperature:
                    weights = torch.softmax(row / algorithm_temperature, -1)
                    at = torch.multinomial(weights, count)[0]
                else:
                    at = torch.topk(row, count).indices[0]
                full = torch.full(canvas.shape, mask_id)
                full[masked] = guess
                canvas[0, at] = full[0, at]
        seen.append(canvas.clone())
    return torch.cat(seen)


def fast_dllm(ask, prompt, mask_id, *, length, block, threshold, temperature):
    canvas = torch.tensor([prompt + [mask_id] * length])
    seen = [canvas.clone()]
    for start in range(len(prompt), len(prompt) + length, block):
        while (canvas[0, start : start + block] == mask_id).any():
            logits = ask(canvas)
            noisy = logits
            if temperature > 0:
                u = torch.rand_like(logits, dtype=torch.float64)
                noisy = logits.double().exp() / (-torch.log(u)) ** temperature
            guess = noisy.argmax(-1)[0]
            sure = torch.softmax(logits.double(), -1)[0].gather(-1, guess[:, None])[:, 0]
            open_ = (canvas[0] == mask_id) & (torch.arange(canvas.shape[1]) < start + block)
            sure = torch.where(open_, sure, -torch.inf)
            best = int(sure.argmax())
            for position in open_.nonzero()[:, 0].tolist():
                if position == best or sure[position] >= threshold:
                    canvas[0, position] = guess[position]
            seen.append(canvas.clone())
    return torch.cat(seen)


def _block_tokens(rows, temperature, top_k, top_p):
    """(token, probability) of each row of a block: greedy, or drawn after top-k, then nucleus."""
    if temperature == 0:
        shares = rows.softmax(-1)
        tokens = shares.argmax(-1)
        return tokens, shares.gather(-1, tokens[:, None])[:, 0]
    rows = rows / temperature
    if top_k is not None:
        rows = rows.clone()
        rows[rows < rows.topk(top_k).values[:, -1:]] = -torch.inf
    if top_p is not None:
        for row in rows:
            order = row.argsort(descending=True)
            before = row.softmax(-1)[order].cumsum(0)
            row[order[1:][before[:-1] > top_p]] = -torch.inf
    shares = rows.softmax(-1)
    tokens = torch.multinomial(shares, 1)[:, 0]
    return tokens, shares.gather(-1, tokens[:, None])[:, 0]


def block_diffusion(
    ask, prompt, mask_id, *, length, steps, block, order, threshold, stop, stop_ids,
    temperature=0.0, top_k=None, top_p=None,
):  # fmt: skip
    """SDAR's and LLaDA2.0's generate; `ask` sees the canvas as far as the open block ends."""
    total = -(-(len(prompt) + length) // block) * block
    canvas = torch.tensor(prompt + [mask_id] * (total - len(prompt)))
    seen = [canvas.clone()]
    steps = block if steps is None else min(steps, length)
    quotas = [block // steps + (step < block % steps) for step in range(steps)]
    for start in range(len(prompt) // block * block, total, block):
        for quota in quotas:
            masked = [p for p in range(start, start + block) if canvas[p] == mask_id]
            if not masked:
                break
            rows = ask(canvas[: start + block])[start:]
            tokens, sure = _block_tokens(rows, temperature, top_k, top_p)
            ranked = sorted(masked, key=lambda p: -float(sure[p - start]))
            high = [p for p in masked if sure[p - start] > threshold]
            if order == "sequential":
                taken = masked[:quota]
            elif order == "dynamic" and len(high) >= quota:
                taken = high
            else:
                taken = ranked[:quota]
            for p in taken:
                canvas[p] = tokens[p - start]
            seen.append(canvas.clone())
            ends = [p for p in range(len(prompt), total) if int(canvas[p]) in stop_ids]
            fresh = stop == "token" and set(ends) & set(taken)
            if fresh and mask_id not in canvas[len(prompt) : ends[0]].tolist():
                return torch.stack(seen)
        if stop != "never" and any(token in stop_ids for token in canvas[len(prompt) :].tolist()):
            break
    return torch.stack(seen)


def token_editing(
    ask, prompt, mask_id, *, length, block, threshold, editing_threshold, max_post_steps, least,
    stop, stop_ids, temperature=0.0,
):  # fmt: skip
    """LLaDA2.1's generate, with our limit of steps."""
    total = -(-(len(prompt) + length) // block) * block
    canvas = torch.tensor(prompt + [mask_id] * (total - len(prompt)))
    seen = [canvas.clone()]
    for start in range(len(prompt) // block * block, total, block):
        post_steps = 0
        for _ in range(2 * block + max_post_steps):
            before = canvas.clone()
            masked = [p for p in range(start, start + block) if before[p] == mask_id]
            post_steps += not masked
            if post_steps > max_post_steps:
                break
            rows = ask(canvas[: start + block])[start:]
            tokens, sure = _block_tokens(rows, temperature, None, None)
            high = [p for p in masked if sure[p - start] > threshold]
            ranked = sorted(masked, key=lambda p: -float(sure[p - start]))
            taken = high if len(high) >= min(least, len(masked)) else ranked[:least]
            edited = [
                p
                for p in range(max(start, len(prompt)), start + block)
                if before[p] != mask_id
                and tokens[p - start] != before[p]
                and sure[p - start] > editing_threshold
            ]
            for p in taken + edited:
                canvas[p] = tokens[p - start]
            seen.append(canvas.clone())
            if not masked and not edited:
                break
        written = canvas[len(prompt) : start + block].tolist()
        if stop != "never" and mask_id not in written and set(written) & set(stop_ids):
            break
    return torch.stack(seen)


def dream_on(
    ask, canvas, mask_id, *, max_length, algorithm, expand_id, delete_id, each=1, budget=None,
    delete_right=False,
):  # fmt: skip
    """DreamOn's diffusion_generate, greedy: every frame before and after its changes of length.

    A window of the padded row is read; what is beyond it is neither seen nor written.
    """
    window, first = len(canvas), canvas.index(mask_id)
    row = canvas + [delete_id] * (max_length - window)
    budget = 2 * (max_length - first) if budget is None else budget
    seen = [list(canvas)]
    for _ in range(2 * (max_length - first) + 2 * budget):
        masked = [p for p in range(window) if row[p] == mask_id]
        if not masked:
            break
        # 1. One pass over the window; the surest of its masks are written.
        rows = ask(torch.tensor(row[:window]))[masked].clone()
        if window == max_length or budget == 0:
            rows[:, expand_id] -= 1e9
        shares = rows.softmax(-1)
        best = shares.sort(-1, descending=True)
        if algorithm == "maskgit_plus":
            sure = best.values[:, 0]
        elif algorithm == "topk_margin":
            sure = best.values[:, 0] - best.values[:, 1]
        else:
            sure = (shares * (shares + 1e-10).log()).sum(-1)
        for k in sorted(range(len(masked)), key=lambda k: -float(sure[k]))[:each]:
            row[masked[k]] = int(best.indices[k, 0])
        if row[:window] != seen[-1]:  # where the mask id was chosen it is chosen until the end
            seen.append(row[:window])
        # 2. Deletions: the row is closed up, a mask comes in at its far end.
        if delete_right and delete_id in (mine := [row[p] for p in masked]):
            for p in masked[mine.index(delete_id) :]:
                row[p] = delete_id
        for p in reversed(masked):
            if row[p] == delete_id:
                row = row[:p] + row[p + 1 :] + [mask_id]
                window -= 1
        # 3. Expansions: one position becomes two.
        for p in reversed(range(window)):
            if row[p] == expand_id:
                row = [*row[:p], mask_id, mask_id, *row[p + 1 :]][:max_length]
                window, budget = window + 1, budget - 1
        if row[:window] != seen[-1]:
            seen.append(row[:window])
    return seen


def rnd1(ask, canvas, mask_id, *, steps, entropy_bound):
    """RND1's diffusion_sample, greedy; `ask` gives rows about their own position."""
    canvas = torch.tensor(canvas)
    seen, total = [canvas.clone()], (canvas == mask_id).sum()
    for left in range(steps - 1, -1, -1):
        masked = (canvas == mask_id).nonzero()[:, 0].tolist()
        if not masked:
            break
        logp = ask(canvas).log_softmax(-1)
        tokens, entropy = logp.argmax(-1), -(logp.exp() * logp).sum(-1)
        if left and entropy_bound is not None:
            taken, spent = [], []
            for p in sorted(masked, key=lambda p: -float(logp[p, tokens[p]])):
                spent.append(float(entropy[p]))
                if sum(spent) - max(spent) > entropy_bound:
                    break
                taken.append(p)
        else:
            kept = int((total * (left / steps)).long())
            ranked = sorted(masked, key=lambda p: float(entropy[p]))
            taken = ranked[: max(len(masked) - kept, 0)]
        for p in taken:
            canvas[p] = tokens[p]
        seen.append(canvas.clone())
    return torch.stack(seen)


def fast_dllm_cached(rows_of, prompt, mask_id, *, length, block, cache, steps=None, threshold=None):
    """Fast-dLLM's generate with a prefix or dual cache, and dKV-Cache-Decode, greedy.

    `rows_of(canvas, rows)` computes the logits of `rows` (None: all), with keys and values of other
    rows as the last pass that computed them left them. `cache` is "prefix", "dual" or a number: the
    passes between two whole ones of dKV-Cache. Passes that find a block finished are left out.
    """
    canvas = torch.tensor(prompt + [mask_id] * length)
    everything = list(range(len(canvas)))
    seen, computed = [canvas.clone()], []
    steps_each = None if steps is None else steps // (length // block)
    for start in range(len(prompt), len(prompt) + length, block):
        end = start + block
        waiting = int((canvas[start:end] == mask_id).sum())
        for step in range(steps_each or block):
            masked = [p for p in range(start, end) if canvas[p] == mask_id]
            if not masked:
                break
            # 1. Which rows are computed now.
            if step == 0 or (cache not in ("prefix", "dual") and (step == 1 or step % cache == 0)):
                rows = everything
            elif cache == "prefix":
                rows = everything[start:]
            elif cache == "dual":
                rows = everything[start:end]
            else:  # what was masked before the last step
                rows = [p for p in everything if seen[-2][p] == mask_id]
            computed.append(rows)
            logits = rows_of(canvas, rows)
            # 2. Which of the block's masks are written.
            shares = logits.softmax(-1)
            sure = {p: float(shares[rows.index(p)].max()) for p in masked}
            ranked = sorted(masked, key=lambda p: -sure[p])
            if threshold is None:
                taken = ranked[: waiting // steps_each + (step < waiting % steps_each)]
            else:
                taken = [p for p in masked if sure[p] >= threshold or p == ranked[0]]
            for p in taken:
                canvas[p] = logits[rows.index(p)].argmax()
            seen.append(canvas.clone())
    return torch.stack(seen), computed
