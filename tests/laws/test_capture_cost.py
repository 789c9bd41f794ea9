"""What measuring takes, counted: operations, buffers and steps, never seconds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import anchorwatch as aw
from anchorwatch.errors import SpecError
from anchorwatch.models.attention import Call
from anchorwatch.probes.accumulate import TraceBuffer
from anchorwatch.probes.reduce import TILE_BYTES, StatRequest, reduce_attention
from anchorwatch.trace.store import BLOCK_STEPS

DECODING = aw.decoding.LowConfidence(length=8, steps=8)


class Operations(TorchDispatchMode):
    """Counts operations that compute something, and the largest tensor that one of them makes."""

    def __init__(self):
        super().__init__()
        self.count, self.largest = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.count += 1
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel() * result.element_size())
        return result


def call_of(length, heads=4, size=16):
    query, key, value = torch.randn(3, 1, heads, length, size).unbind()
    lse = torch.logsumexp(query @ key.transpose(2, 3) * size**-0.5, dim=-1)
    return Call(0, query, key, value, size**-0.5, None, False, lse, None)


@pytest.mark.parametrize("length", [256, 512, 1024])
def test_no_tensor_of_a_reduction_is_larger_than_tiles_or_sums(length):
    call = call_of(length)
    rows = torch.arange(length)[None] < length // 2
    wanted = StatRequest(
        torch.ones(1, 3, length), entropy=True, diagonal=True, top=8, top_rows=rows
    )
    with Operations() as operations:
        reduce_attention(call, wanted)
    of_heads = 4 * call.query.numel()
    assert operations.largest <= max(TILE_BYTES, 4 * 16 * length, 4 * of_heads)
    whole_map = 4 * call.query.shape[1] * length**2
    assert length < 1024 or operations.largest <= whole_map / 8


class Traversals(TorchDispatchMode):
    """Counts operations, views apart, that read or write a tensor of at least `least` numbers."""

    def __init__(self, least):
        super().__init__()
        self.least, self.names = least, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [x for x in (result, *args) if isinstance(x, torch.Tensor)]
        if not function.is_view and max((x.numel() for x in tensors), default=0) >= self.least:
            self.names.append(function.overloadpacket.__name__)
        return result


@pytest.mark.parametrize("key_heads", [4, 1])
def test_received_goes_over_a_tile_three_times(key_heads):
    """Products write it, exponentials overwrite it, sums read it: no copy, no scaling apart."""
    call, length = call_of(1024), 1024
    call = replace(call, key=call.key[:, :key_heads], value=call.value[:, :key_heads])
    tiles = 4 * 4 * length**2 // TILE_BYTES
    with Traversals(TILE_BYTES // 4) as traversals, Operations() as operations:
        reduce_attention(call, StatRequest(weights=torch.ones(1, 1, length)))
    made = [name for name in traversals.names if name != "new_empty"]
    assert sorted(set(made)) == ["baddbmm", "baddbmm_", "exp2"]
    assert len(made) == 3 * tiles, made
    assert operations.count <= 30 * tiles


def test_a_short_canvas_is_one_tile_of_all_heads():
    call = call_of(128)
    with Operations() as operations:
        reduce_attention(call, StatRequest(weights=torch.ones(1, 1, 128)))
    assert operations.count <= 40


def test_bytes_of_a_reduction_grow_no_faster_than_the_canvas():
    sizes, made = [512, 1024, 2048, 4096], []
    for length in sizes:
        call, wanted = call_of(length, heads=1), StatRequest(weights=torch.ones(1, 1, length))
        with torch.profiler.profile(profile_memory=True) as profile:
            reduce_attention(call, wanted)
        made.append(sum(max(e.self_cpu_memory_usage, 0) for e in profile.key_averages()))
    assert np.polyfit(np.log(sizes), np.log(made), 1)[0] <= 1.1, made


def test_a_streamed_run_holds_one_block_of_steps_however_many_there_are(tmp_path, monkeypatch):
    held, honest = {}, TraceBuffer.next_block

    def next_block(buffer):
        honest(buffer)
        arrays = [array for name, array in buffer.arrays.items() if buffer.by_step(name)]
        held.setdefault(steps, set()).add(sum(array.nbytes for array in arrays))

    monkeypatch.setattr(TraceBuffer, "next_block", next_block)
    model = aw.load("tiny/llada")
    for steps in (2 * BLOCK_STEPS, 4 * BLOCK_STEPS):
        decoding = aw.decoding.LowConfidence(length=4 * BLOCK_STEPS, steps=steps)
        aw.run(model, "the anchor", decoding, out=tmp_path / f"{steps}.trace")
    assert len(held) == 2
    assert len(set().union(*held.values())) == 1, held


def count_of_run(probes):
    model = aw.load("tiny/llada")
    aw.run(model, "the anchor", DECODING, probes=probes)
    with Operations() as operations:
        aw.run(model, "the anchor", DECODING, probes=probes)
    return operations.count


def test_default_probes_take_few_operations_for_each_layer():
    """Small models spend their time between operations: a regression here is felt there."""
    layers, steps = aw.load("tiny/llada").num_layers, 8
    more = count_of_run(aw.probes.DEFAULT) - count_of_run(())
    assert more / (layers * steps) < 230


def test_every_kth_step_is_measured_alike_and_the_others_are_absent():
    model = aw.load("tiny/llada")
    whole = aw.run(model, "the anchor", DECODING)
    some = aw.run(model, "the anchor", DECODING, probes=aw.probes.measure_every(3))
    assert whole.digest() == some.digest()
    for name in ("received", "entropy", "diagonal", "cosine", "key_norm"):
        for step in range(some.num_steps):
            row = some[name].values[step]
            if step % 3:
                assert np.isnan(row).all(), (name, step)
            else:
                assert np.array_equal(row, whole[name].values[step], equal_nan=True), (name, step)
    committed = some.committed_at
    measured = (committed >= 0) & (committed % 3 == 0)
    keys = some["commit_top_key"].values  # [layer, head, position, rank]
    assert (keys[:, :, measured, 0] >= 0).all()
    assert (keys[:, :, ~measured] == -1).all()


def test_every_kth_step_is_in_manifest_plan_replay_and_words():
    model, probes = aw.load("tiny/llada"), (aw.probes.entropy(every=2),)
    trace = aw.run(model, "the anchor", DECODING, probes=probes)
    assert tuple(map(aw.probes.from_dict, trace.manifest["probes"])) == probes
    assert "every" not in aw.probes.entropy().as_dict()
    assert probes[0].as_word() == "entropy:every=2"
    again = aw.replay(model, trace, probes, steps=[1, 2, 4])
    assert np.array_equal(np.isnan(again["entropy"].values[:, 0, 0]), [1, 1, 0, 1, 0, 1, 1, 1])
    assert np.array_equal(again["entropy"].values[4], trace["entropy"].values[4])
    maps = aw.run(model, "the anchor", DECODING, probes=[aw.probes.pattern(layers=[0], every=4)])
    assert sorted(set(maps["pick_step"].values.tolist())) == [0, 4]


def test_no_step_to_measure_is_refused():
    with pytest.raises(SpecError, match=r"steps=\[1, 3\] has no step that every=2 divides"):
        aw.probes.entropy(steps=[1, 3], every=2)
    with pytest.raises(SpecError, match="every=0 is not a whole number of at least 1"):
        aw.probes.entropy(every=0)
