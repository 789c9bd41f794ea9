"""Training in bfloat16 on a CPU computes attention as two products: the same numbers."""

import pytest
import torch

import tolerances
from anchorwatch.models import attention

HEADS, KEY_HEADS, TOKENS, SIZE = 6, 2, 40, 16


class Module(torch.nn.Module):
    is_causal = False
    num_key_value_groups = HEADS // KEY_HEADS


def draw(heads: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, heads, TOKENS, SIZE, generator=generator, dtype=torch.float64)


def compute_plainly(query, key, value, mask, causal):
    """The whole map in float64: [B, Q, H, D]."""
    key, value = (x.repeat_interleave(HEADS // KEY_HEADS, dim=1) for x in (key, value))
    logits = query @ key.transpose(-1, -2) * SIZE**-0.5
    assert logits.abs().max() < 1.5 * tolerances.BFLOAT16_TRAINING_LOGIT
    seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    if mask is not None:
        seen = seen & mask
    return (logits.masked_fill(~seen, -torch.inf).softmax(-1) @ value).transpose(1, 2)


def compute(compute_map, tensors, dtype):
    """Output and gradients, float64, of a fixed sum of the output."""
    leaves = [x.detach().to(dtype).clone().requires_grad_() for x in tensors]
    out = compute_map(*leaves)
    (out.double() * draw(TOKENS, 9)[:, :, :HEADS]).sum().backward()
    return [out.detach().double(), *(leaf.grad.double() for leaf in leaves)]


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_training_in_bf16_agrees_with_the_whole_map(causal, padded, dtype):
    module = Module()
    module.is_causal = causal
    mask = None
    if padded:  # as transformers gives it, causality included
        mask = (torch.arange(TOKENS) < torch.tensor([30, 40, 35])[:, None])[:, None, None]
        mask = mask & torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(0 if causal else TOKENS)
    tensors = [0.7 * draw(HEADS, 0), 0.7 * draw(KEY_HEADS, 1), draw(KEY_HEADS, 2)]

    def trained(query, key, value):
        with torch.autocast("cpu", torch.bfloat16):
            return attention._run_kernel(module, query, key, value, mask, {"scaling": SIZE**-0.5})

    expected = compute(lambda *x: compute_plainly(*x, mask, causal), tensors, torch.float64)
    for mine, plain in zip(compute(trained, tensors, dtype), expected, strict=True):
        error = (mine - plain).square().mean().sqrt() / plain.square().mean().sqrt()
        assert 0 < error < tolerances.BFLOAT16_TRAINING


def test_a_row_that_sees_nothing_gives_zero_and_no_gradient_is_lost():
    """Rows padded on the left, causal: what is padding sees nothing, and nobody sees it."""
    padding = 5
    mask = torch.ones(3, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
    mask[0, :, :, :padding] = False
    tensors = [0.7 * draw(HEADS, 0), 0.7 * draw(KEY_HEADS, 1), draw(KEY_HEADS, 2)]
    sees = mask.any(dim=-1)[:, 0, :, None, None]

    def trained(*leaves):
        with torch.autocast("cpu", torch.bfloat16):
            out = attention._run_kernel(Module(), *leaves, mask, {"scaling": SIZE**-0.5})
        assert not out[0, :padding].any()
        return out

    def plain(*leaves):
        some = mask | ~mask.any(dim=-1, keepdim=True)
        return compute_plainly(*leaves, some, False).masked_fill(~sees, 0.0)

    expected = compute(plain, tensors, torch.float64)
    for mine, plainly in zip(compute(trained, tensors, torch.float32), expected, strict=True):
        error = (mine - plainly).square().mean().sqrt() / plainly.square().mean().sqrt()
        assert error < tolerances.BFLOAT16_TRAINING


def test_only_training_in_bf16_leaves_the_fused_kernel(monkeypatch):
    calls = []

    def count(*words, **options):
        calls.append(words[1].dtype)
        return kernel(*words, **options)

    kernel = attention.sdpa_attention_forward
    monkeypatch.setattr(attention, "sdpa_attention_forward", count)
    tensors = [draw(HEADS, 0).float(), draw(KEY_HEADS, 1).float(), draw(KEY_HEADS, 2).float()]
    leaves = [x.clone().requires_grad_() for x in tensors]
    module = Module()
    attention._run_kernel(module, *tensors, None, {})
    attention._run_kernel(module, *leaves, None, {})
    with torch.no_grad():
        attention._run_kernel(module, *(x.bfloat16() for x in leaves), None, {})
    assert len(calls) == 3
    with torch.autocast("cpu", torch.bfloat16):
        attention._run_kernel(module, *leaves, None, {})
    assert len(calls) == 3


@pytest.mark.parametrize("added", [0, 1], ids=["plain", "with a sink token"])
@pytest.mark.parametrize("queries", [512, 513])
def test_added_keys_do_not_decide_which_kernel_trains(monkeypatch, queries, added):
    """So that a network with a sink token and its pair without differ by the token alone."""
    calls = []

    def count(*words, **options):
        calls.append(words[1].shape)
        return kernel(*words, **options)

    kernel = attention.sdpa_attention_forward
    monkeypatch.setattr(attention, "sdpa_attention_forward", count)
    query = torch.zeros(1, 1, queries, 2, requires_grad=True)
    key = torch.zeros(1, 1, queries + added, 2)
    module = Module()
    module.num_key_value_groups = 1
    with torch.autocast("cpu", torch.bfloat16):
        attention._run_kernel(module, query, key, key, None, {})
    assert bool(calls) == (queries > 512)
