"""The CUDA kernels of received attention against the plain sums, by Triton's interpreter on a CPU."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import tolerances
from anchorwatch.models.attention import Call
from anchorwatch.probes.reduce import StatRequest, fits_kernel, reduce_attention

CALLS = {
    "bidirectional": {"queries": 70, "keys": 70},
    "grouped heads, several groups": {"batch": 2, "key_heads": 2, "queries": 65, "keys": 65},
    "causal": {"queries": 66, "keys": 66, "causal": True},
    "masked, with a dead row": {"batch": 2, "queries": 20, "keys": 90, "masked": 2},
    "one mask for all": {"batch": 2, "queries": 20, "keys": 40, "masked": 1},
    "one new row": {"queries": 1, "keys": 80},
    "log-sum-exp given": {"queries": 40, "keys": 40, "given": True},
}

INTERPRETED = """
import json, sys
import test_received_kernel as cases
from anchorwatch.probes.received_kernel import sum_received
gaps = {}
for name in cases.CALLS:
    call, weights = cases.call_of(**cases.CALLS[name])
    plain = cases.plain_sums(call, weights)
    gap = sum_received(call, weights, cases.live_rows(call)) - plain
    gaps[name] = float(gap.abs().max() / plain.abs().max())
print(json.dumps(gaps))
"""


def call_of(queries, keys, batch=1, key_heads=4, causal=False, masked=0, given=False):
    torch.manual_seed(0)
    query = 2 * torch.randn(batch, queries, 4, 24).transpose(1, 2)  # as networks lay it out
    key = torch.randn(batch, key_heads, keys, 24)
    mask = None
    if masked:
        mask = torch.rand(masked, 1, queries, keys) > 0.3
        mask[0, 0, 3] = False
    call = Call(0, query, key, key, 24**-0.5, mask, causal, None, None)
    if given:
        call = replace(call, lse=torch.logsumexp(query @ key.transpose(2, 3) * call.scale, dim=-1))
    return call, (torch.rand(batch, 3, queries) > 0.4).float()


def live_rows(call):
    rows = torch.ones(call.query.shape[0], call.query.shape[2], dtype=torch.bool)
    return rows if call.attendable is None else call.attendable[:, 0].any(dim=-1).expand_as(rows)


def plain_sums(call, weights):
    """The obvious way: whole maps in float64."""
    key = call.key.repeat_interleave(4 // call.key.shape[1], dim=1).double()
    logits = call.query.double() @ key.transpose(2, 3) * call.scale
    seen = torch.ones_like(logits, dtype=torch.bool)
    if call.causal:
        seen = seen.tril()
    if call.attendable is not None:
        seen = seen & call.attendable
    maps = torch.softmax(logits.masked_fill(~seen, -torch.inf), dim=-1).nan_to_num(0.0)
    return weights[:, None].double() @ maps


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_the_interpreted_kernels_give_the_plain_sums():
    pytest.importorskip("triton", reason="Triton has no wheel for this processor")
    paths = os.pathsep.join(["tests/laws", "tests", *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    gaps = json.loads(done.stdout)
    assert set(gaps) == set(CALLS)
    for name, gap in gaps.items():
        assert gap <= tolerances.of_call(call_of(**CALLS[name])[0]), name


@pytest.mark.parametrize("name", CALLS)
def test_the_tiles_give_the_plain_sums(name):
    call, weights = call_of(**CALLS[name])
    plain = plain_sums(call, weights)
    gap = reduce_attention(call, StatRequest(weights=weights)).sums - plain
    assert gap.abs().max() / plain.abs().max() <= tolerances.of_call(call)


def test_the_kernels_are_for_unedited_calls_on_cuda_that_want_nothing_else():
    call, weights = call_of(8, 8)
    wanted = StatRequest(weights=weights)
    assert not fits_kernel(call, wanted)
    pytest.importorskip("triton", reason="Triton has no wheel for this processor")
    on_cuda = replace(call, query=SimpleNamespace(device=torch.device("cuda")))
    assert fits_kernel(on_cuda, wanted)
    assert not fits_kernel(replace(on_cuda, bias=torch.zeros(1, 1, 1, 8)), wanted)
    assert not fits_kernel(on_cuda, replace(wanted, entropy=True))
    assert not fits_kernel(on_cuda, replace(wanted, top=8))
    assert not fits_kernel(on_cuda, replace(wanted, mixed=torch.zeros(1, 8, 2)))
