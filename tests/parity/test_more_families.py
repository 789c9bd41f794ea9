"""gpt-oss with its learned sinks, and ESM-2: stock networks against ours."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import anchorwatch as aw
import tolerances
from anchorwatch.errors import FamilyError, SpecError
from checkpoints import MASK, SMALL, network, tensors_of, write

IDS = torch.tensor([5, 60, 7, MASK, MASK, 12, 33, MASK, 41, 8, 9])
GPT_OSS = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "head_dim": 8,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def gpt_oss(folder):
    """A checkpoint, and the stock network with transformers' own eager attention."""
    config = AutoConfig.for_model("gpt_oss", **(SMALL | GPT_OSS))
    torch.manual_seed(7)
    made = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
        for layer in made.model.layers:
            layer.self_attn.sinks.add_(1.5)
    fields = made.config.to_dict() | {"architectures": ["GptOssForCausalLM"]}
    for name in ("transformers_version", "_name_or_path", "dtype"):
        fields.pop(name, None)
    return aw.load(write(folder, fields, tensors_of(made))), made


def test_gpt_oss_s_sinks_are_sink_logits(tmp_path):
    model, made = gpt_oss(tmp_path / "m")
    (part,) = model.parts
    assert type(part).__name__ == "sink_logit"
    sinks = torch.stack([layer.self_attn.sinks for layer in made.model.layers])
    np.testing.assert_array_equal(part.logit.array, sinks.detach().numpy())
    with torch.no_grad():
        gap = (model.logits(IDS)[1:] - made(IDS[None]).logits[0][:-1]).abs().max()
        assert gap <= tolerances.SAME_MATHS
        for layer in model.network.model.layers:  # without them it is another model
            layer.self_attn.sink_logit.fill_(-30.0)
    other = aw.load(tmp_path / "m")
    assert (model.logits(IDS)[1:] - other.logits(IDS)[1:]).abs().max() > 100 * gap
    other.check()


def test_gpt_oss_writes_what_generate_writes_and_its_sinks_are_measured(tmp_path):
    model, made = gpt_oss(tmp_path / "m")
    theirs = made.generate(IDS[None], do_sample=False, max_new_tokens=6)
    for cache in (True, False):
        trace = aw.run(model, IDS.tolist(), aw.decoding.LeftToRight(6, cache=cache, stop=False))
        assert trace.canvas[-1].tolist() == theirs[0].tolist()
        total = trace["received"].sel(group="all").sum("key") + trace["sink_received"].sel(
            group="all"
        )
        np.testing.assert_allclose(total, 1, atol=1e-2)  # stored as float16
        assert (trace["sink_received"].sel(group="all") > 0.1).all()


@pytest.mark.parametrize("token_dropout", [True, False])
def test_esm_2_is_a_masked_lm(tmp_path, token_dropout):
    options = {"position_embedding_type": "rotary", "mask_token_id": MASK, "pad_token_id": 1}
    made = network("esm", masked=True, token_dropout=token_dropout, **options)
    made.save_pretrained(tmp_path / "m")
    model = aw.load(tmp_path / "m")
    assert (model.family.name, model.mask_id) == ("encoder", MASK)
    with torch.no_grad():
        gap = (model.logits(IDS) - made(IDS[None]).logits[0]).abs().max()
    assert gap <= tolerances.SAME_MATHS
    model.check()
    with pytest.raises(SpecError, match="scales its embeddings by the keys that all rows see"):
        model.logits(IDS, torch.ones(len(IDS), len(IDS), dtype=torch.bool))
    trace = aw.run(model, canvas=IDS.tolist(), decoding=aw.decoding.LowConfidence())
    assert trace.num_left_masked == 0


def test_esm_with_a_table_of_positions_is_refused(tmp_path):
    made = network("esm", masked=True, mask_token_id=MASK, pad_token_id=1)
    made.save_pretrained(tmp_path / "m")
    with pytest.raises(FamilyError, match=r"ESM-2 with its rotary positions is read"):
        aw.load(tmp_path / "m")
