"""Stable-DiffCoder: a Llama under a block-causal mask, and its generate as a plain loop."""

import pytest
import torch

import anchorwatch as aw
from checkpoints import MASK, SMALL, network, tensors_of, write

pytestmark = pytest.mark.filterwarnings("ignore:.*asks for remote code")
BLOCK = 4


def write_stable_diffcoder(folder, **differs):
    """Names and fields as released: a Llama's, with a class of its own."""
    made = network("llama", attention_bias=False, rope_theta=500000.0)
    config = {name: value for name, value in SMALL.items() if name != "pad_token_id"}
    config |= {"architectures": ["StableDiffcoderForCausalLM"], "model_type": "llama"}
    config |= {"auto_map": {"AutoModelForCausalLM": "modeling.StableDiffcoderForCausalLM"}}
    config |= {"rope_theta": 500000.0, "mask_token_id": MASK} | differs
    return write(folder, config, tensors_of(made)), made


def visible(length, block):
    """[T, T]: a block sees itself and those before it."""
    blocks = torch.arange(length) // block
    return blocks[:, None] >= blocks[None, :]


def stock_logits(made, canvas, block=BLOCK):
    with torch.no_grad():
        mask = visible(len(canvas), block)[None, None]
        return made(canvas[None], attention_mask=mask).logits[0]


def generate_block(made, prompt, length, *, block=BLOCK, steps=None, threshold=0.95):
    """The authors' generate_block at temperature 0, without its cache: the canvas of each pass.

    A block's passes are its masks or its steps, whichever is less; each commits what is at least
    as sure as the threshold, and the surest in any case; rows are not shifted.
    """
    canvas = torch.tensor([*prompt, *[MASK] * length])
    states = []
    for start in range(len(prompt) // block * block, len(canvas), block):
        end = min(start + block, len(canvas))
        masks = int((canvas[start:end] == MASK).sum())
        for _ in range(min(masks, steps or block)):
            masked = canvas[start:end] == MASK
            if not masked.any():
                break
            states.append(canvas.clone())
            probabilities = stock_logits(made, canvas[:end])[start:].double().softmax(-1)
            sure, tokens = probabilities.max(-1)
            sure = sure.masked_fill(~masked, -1)
            chosen = masked & (sure >= threshold)
            chosen[int(sure.argmax())] = True
            canvas[start:end] = torch.where(chosen, tokens, canvas[start:end])
        if (canvas[max(start, len(prompt)) : end] == SMALL["eos_token_id"]).any():
            break
    return [*states, canvas]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder, made = write_stable_diffcoder(tmp_path_factory.mktemp("m"))
    with pytest.warns(UserWarning, match="asks for remote code"):
        return aw.load(folder), made


def test_it_is_a_llama_that_looks_in_blocks(both):
    model, made = both
    assert (model.family.name, model.block, model.mask_id) == ("stable-diffcoder", 4, MASK)
    canvas = torch.tensor([5, 60, 7, MASK, MASK, 12, 33, MASK, 41, 8, MASK])
    gap = (model.logits(canvas) - stock_logits(made, canvas)).abs().max()
    assert float(gap) < 1e-4  # the golden records' tolerance of logits
    model.check()


@pytest.mark.parametrize("threshold", [0.95, 0.1, 0.03])
@pytest.mark.parametrize("length", [4, 12])
@pytest.mark.parametrize("count", [1, 4, 6, 8, 11])
def test_its_generate_frame_by_frame(both, threshold, length, count):
    model, made = both
    prompt = list(range(5, 5 + count))
    theirs = generate_block(made, prompt, length, threshold=threshold)
    how = aw.decoding.BlockDiffusion(length=length, threshold=threshold)
    trace = aw.run(model, prompt, how)
    # Ours fills the last block up: blocks that are whole upstream are compared.
    whole = (count + length) // BLOCK * BLOCK
    ours = [torch.tensor(frame[:whole]) for frame in trace.canvas]
    plain = [frame[:whole] for frame in theirs]
    distinct = [f for k, f in enumerate(plain) if k == 0 or not torch.equal(f, plain[k - 1])]
    mine = [f for k, f in enumerate(ours) if k == 0 or not torch.equal(f, ours[k - 1])]
    assert len(distinct) == len(mine)
    assert all(torch.equal(a, b) for a, b in zip(distinct, mine, strict=True))


def test_the_exact_cache_writes_the_same(both):
    model, _ = both
    prompt = list(range(5, 11))
    how = {"length": 10, "threshold": 0.1}
    plain = aw.run(model, prompt, aw.decoding.BlockDiffusion(**how))
    kept = aw.run(model, prompt, aw.decoding.BlockDiffusion(**how, cache=True))
    assert (plain.canvas == kept.canvas).all()
    assert kept.manifest["rows_computed"] < plain.manifest["rows_computed"]


def test_the_mask_and_the_block_are_released_ones_unless_said(tmp_path):
    folder, _ = write_stable_diffcoder(tmp_path / "m", mask_token_id=None)
    assert aw.load(folder).mask_id == 5
    folder, _ = write_stable_diffcoder(tmp_path / "b", block_size=8)
    assert aw.load(folder).block == 8
