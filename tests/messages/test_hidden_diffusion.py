"""A diffusion checkpoint that calls itself a causal LM is not read as one without being asked."""

import json

import pytest
import torch

import anchorwatch as aw
import checkpoints
from anchorwatch.errors import FamilyError
from checkpoints import MASK, network, tensors_of, write

IDS = torch.tensor([5, 60, 7, MASK, MASK, 12, 33, MASK, 41, 8, 9])
REMOTE = {"AutoModelForCausalLM": "modeling_mine.LlamaForCausalLM"}


def checkpoint(tmp_path, made=None, **differs):
    made = made or network("llama", bidirectional=True)
    fields = made.config.to_dict()
    for name in ("transformers_version", "is_causal", "_name_or_path", "dtype"):
        fields.pop(name, None)
    config = fields | {"architectures": ["LlamaForCausalLM"]} | differs
    return write(tmp_path / "m", config, tensors_of(made)), made


@pytest.mark.parametrize(
    ("differs", "says"),
    [
        ({"mask_token_id": MASK}, "config.json names a mask token"),
        ({"num_diffusion_steps": 64}, "config.json says num_diffusion_steps"),
        (
            {"auto_map": {"AutoModelForCausalLM": "modeling_llada.LlamaForCausalLM"}},
            "auto_map names modeling_llada.LlamaForCausalLM",
        ),
        ({"auto_map": REMOTE, "is_causal": False}, "config.json says is_causal=False"),
    ],
)
def test_a_hint_of_diffusion_asks_for_the_family(tmp_path, differs, says):
    folder, _ = checkpoint(tmp_path, **differs)
    with pytest.raises(FamilyError) as error:
        aw.load(folder)
    assert says in str(error.value)
    assert "calls itself LlamaForCausalLM, which is autoregressive" in str(error.value)
    assert "family='causal' if it writes left to right, family='llada'" in str(error.value)


def test_a_mask_token_of_the_tokenizer_is_a_hint(tmp_path):
    folder, _ = checkpoint(tmp_path)
    checkpoints.write_tokenizer(folder, mask_token="<M>")
    with pytest.raises(FamilyError, match=r"tokenizer\.mask_token names a mask token"):
        aw.load(folder)
    assert aw.load(folder, family="causal").family.name == "causal"


def test_the_family_that_is_said_decides(tmp_path):
    folder, made = checkpoint(tmp_path, mask_token_id=MASK)
    model = aw.load(folder, family="llada")
    assert (model.family.name, model.family.kind, model.mask_id) == ("llada", "mdm", MASK)
    with torch.no_grad():
        assert torch.equal(model.logits(IDS), made(IDS[None]).logits[0])
    causal = aw.load(folder, family="causal")
    assert causal.family.kind == "arm"
    model.check()
    causal.check()


def test_remote_code_alone_is_no_hint(tmp_path):
    """Many autoregressive checkpoints carry an auto_map; it is ignored, and said."""
    folder, _ = checkpoint(tmp_path, auto_map=REMOTE)
    with pytest.warns(aw.errors.AnchorwatchWarning, match="asks for remote code"):
        assert aw.load(folder).family.name == "causal"


def test_the_same_hints_are_read_from_generation_config(tmp_path):
    folder, _ = checkpoint(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"mask_token_id": MASK}))
    with pytest.raises(FamilyError, match=r"generation_config\.json names a mask token"):
        aw.load(folder)
