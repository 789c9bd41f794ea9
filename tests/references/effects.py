"""What an edit does, the obvious way: whole maps, whole logits, one pair after another."""

import math

import numpy as np
import torch

from anchorwatch.models import tiny


def edit_distance(one, two):
    """Levenshtein by its definition, over the longer length."""
    held = {}

    def distance(i, j):
        if (i, j) not in held:
            if not i or not j:
                held[i, j] = i + j
            else:
                same = distance(i - 1, j - 1) + (one[i - 1] != two[j - 1])
                held[i, j] = min(same, distance(i - 1, j) + 1, distance(i, j - 1) + 1)
        return held[i, j]

    longer = max(len(one), len(two))
    return distance(len(one), len(two)) / longer if longer else 0.0


def parted(one, two):
    """The first step after which two lists of frames differ."""
    for step in range(max(len(one), len(two)) - 1):
        a, b = one[min(step + 1, len(one) - 1)], two[min(step + 1, len(two) - 1)]
        if list(a) != list(b):
            return step
    return None


def order_tau(one, two):
    """Concordant less discordant pairs of positions that both runs committed, ties by tau-b."""
    both = [(a, b) for a, b in zip(one, two, strict=True) if a >= 0 and b >= 0]
    score, first, second = 0, 0, 0
    for i in range(len(both)):
        for j in range(i):
            a, b = np.sign(both[i][0] - both[j][0]), np.sign(both[i][1] - both[j][1])
            score, first, second = score + a * b, first + abs(a), second + abs(b)
    return score / math.sqrt(first * second) if first and second else math.nan


def moved(before, after, hidden, even, rule):
    """{outcome: [value, null]} of [layer, head, key] shares, one head after another."""
    gains = ("largest_gainer", "gain_entropy", "new_sink_share")
    names = ("hidden_keys", "hidden_share", *gains, "greatest_hidden")
    sums = {name: np.zeros(3) for name in names}
    for layer in range(before.shape[0]):
        for head in range(before.shape[1]):
            p, q = before[layer, head], after[layer, head]
            gone = {int(key) for key in hidden[layer, head] if key >= 0}
            if not gone:
                continue
            keys = [key for key in range(len(p)) if not np.isnan(p[key])]
            free = [key for key in keys if key not in gone]
            had, has = sum(p[key] for key in gone), sum(q[key] for key in gone)
            sums["hidden_keys"] += len(gone), math.nan, 1
            sums["hidden_share"] += had, sum(even.shares[layer, key] for key in gone), 1
            greatest = max(keys, key=lambda key: p[key])
            sums["greatest_hidden"] += greatest in gone, len(gone) / len(keys), 1
            lost = had - has
            gain = {key: max(q[key] - p[key], 0.0) for key in free}
            total, rest = sum(gain.values()), sum(p[key] for key in free)
            if lost <= 0 or total <= 0 or rest <= 0:
                continue
            gain = {key: gain[key] / total for key in free}
            null = {key: p[key] / rest for key in free}
            sums["largest_gainer"] += lost * max(gain.values()), lost * max(null.values()), lost
            if len(free) > 1:
                spread = [_entropy(held.values()) / math.log(len(free)) for held in (gain, null)]
                sums["gain_entropy"] += lost * spread[0], lost * spread[1], lost
            fair = np.array([q[key] if key in gone else np.nan for key in range(len(p))])
            for key in free:
                fair[key] = p[key] * (1 - has) / (1 - had)
            labels = [rule.labels(shares, even.seen[layer]) for shares in (p, q, fair)]
            taken = sum(gain[key] for key in free if labels[1][key] and not labels[0][key])
            by_null = sum(null[key] for key in free if labels[2][key] and not labels[0][key])
            sums["new_sink_share"] += lost * taken, lost * by_null, lost
    return {
        name: held[:2] / held[2] if held[2] else held[:2] * np.nan for name, held in sums.items()
    }


def _entropy(shares):
    return -sum(share * math.log(share) for share in shares if share > 0)


class Eager:
    """An embedded model with transformers' own eager attention: maps, states and logits."""

    def __init__(self, name):
        self.model = tiny.build(name, torch.float32)
        self.model.network.set_attn_implementation("eager")

    @torch.no_grad()
    def read(self, canvas, hidden=()):
        """(logits [T, V] aligned, maps [layer, head, Q, K], states [layer, T, width])."""
        kept, network = [], self.model.network
        keys = torch.ones(1, len(canvas), dtype=torch.long)
        keys[0, list(hidden)] = 0
        norm = network.model.norm.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
        ids = torch.tensor([[int(one) for one in canvas]])
        positions = torch.arange(len(canvas))[None]
        out = network(
            ids,
            attention_mask=keys,
            position_ids=positions,
            output_attentions=True,
            output_hidden_states=True,
            use_cache=False,
        )
        norm.remove()
        logits = out.logits[0].double()
        if self.model.family.shift:
            logits = torch.cat([logits[:1], logits[:-1]])
        states = torch.cat([*out.hidden_states[1:-1], kept[0]]).double()
        return logits, torch.cat(out.attentions).double(), states


def on_clean_frames(eager, clean, hidden):
    """{outcome: value} and [layer] changes, of hiding some keys everywhere from the first step."""
    agree, kl, rows, per_layer = 0, 0.0, 0, []
    for step in range(clean.num_steps):
        frame = [int(one) for one in clean.canvas[step] if one != -1]
        one, _, states = eager.read(frame)
        two, _, others = eager.read(frame, [key for key in hidden if key < len(frame)])
        predicted = np.flatnonzero(clean.masked[step]).tolist()
        for position in predicted:
            p, q = torch.log_softmax(one[position], -1), torch.log_softmax(two[position], -1)
            agree += int(p.argmax() == q.argmax())
            kl += float((p.exp() * (p - q)).sum())
            rows += 1
        for position in range(len(frame)):
            if position not in hidden:
                gap = (others[:, position] - states[:, position]).norm(dim=-1)
                per_layer.append((gap / states[:, position].norm(dim=-1)).numpy())
    layers = np.mean(per_layer, axis=0)
    values = {"argmax_agreement": agree / rows, "kl": kl / rows, "perturbation": layers.mean()}
    return values, layers
