"""Slow likelihoods: one canvas at a time, loops over orders and sets, straight from the formulas."""

import itertools

import numpy as np
import torch


def token_logprob(model, prompt, answer, masked, position, guidance=0.0, attendable=None):
    """log p of one masked token of the answer, the positions in `masked` being masked."""
    canvas = list(prompt) + [
        model.mask_id if i in masked else token for i, token in enumerate(answer)
    ]
    logits = model.logits(canvas, attendable)[len(prompt) + position].double()
    if guidance:
        blind = [model.mask_id] * len(prompt) + canvas[len(prompt) :]
        other = model.logits(blind, attendable)[len(prompt) + position].double()
        logits = (1 + guidance) * logits - guidance * other
    return float(torch.log_softmax(logits, dim=-1)[answer[position]])


def chain(model, prompt, answer, order=None, guidance=0.0, attendable=None):
    """The chain rule in one order, by default left to right."""
    left, total = list(range(len(answer)) if order is None else order), 0.0
    while left:
        total += token_logprob(model, prompt, answer, left, left[0], guidance, attendable)
        left = left[1:]
    return total


def bound(model, prompt, answer, guidance=0.0):
    """The mean over all orders of the chain rule."""
    orders = itertools.permutations(range(len(answer)))
    return float(np.mean([chain(model, prompt, answer, order, guidance) for order in orders]))


def pseudo(model, prompt, answer):
    return sum(token_logprob(model, prompt, answer, [i], i) for i in range(len(answer)))


def autoregressive(model, prompt, answer):
    """Every token from a pass over what stands before it."""
    text, total = list(prompt), 0.0
    for token in answer:
        logits = model.network(torch.tensor([text])).logits[0, -1].double()
        total += float(torch.log_softmax(logits, dim=-1)[token])
        text.append(token)
    return total
