"""Is it the real checkpoint's behaviour? SmolLM2 (GGUF), rxnmapper (ALBERT) and rxnfp (BERT).

`make test-real` fetches them into `.real`. The two reaction models were trained on SMILES with a
tokenizer of their own, so their ids are made here, from vocab.txt, and given as a canvas.
"""

import re
from pathlib import Path

import measure_specimens
import numpy as np
import pytest
import torch
from transformers import AlbertForMaskedLM, AutoModelForCausalLM, BertForMaskedLM

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchWarning, WeightsError
from anchorwatch.generation.decoding import LeftToRight, LowConfidence
from anchorwatch.models.verify import weights_digest
from anchorwatch.models.zoo import smol

pytestmark = [
    pytest.mark.real,
    # Plain text on purpose: it is compared with `generate` on the same text.
    pytest.mark.filterwarnings("ignore:.*is a chat model and the prompt is plain text"),
]

REAL = Path(__file__).parents[2] / ".real"
LENGTH = 24
PROMPTS = {
    "fact": "The capital of France is",
    "story": "Once upon a time, a small ship left the harbour and",
    "chat": [{"role": "user", "content": "Hi!"}],
}

ATOM_WISE = re.compile(r"\[[^]]+]|Br|Cl|>>|[A-Za-z0-9]|[-=#().+]")
REACTIONS = {
    "esterification": "CO.O=C(O)c1ccccc1.O=S(=O)(O)O>>COC(=O)c1ccccc1",
    "amide coupling": (
        "CN(C)C=O.CCN=C=NCCCN(C)C.NCc1ccccc1.O=C(O)c1ccc(F)cc1>>O=C(NCc1ccccc1)c1ccc(F)cc1"
    ),
    "Suzuki coupling": (
        "COc1ccc(B(O)O)cc1.N#Cc1ccc(Br)cc1.O=C([O-])[O-].[Na+].[Na+].[Pd]"
        ".c1ccc(P(c2ccccc2)c2ccccc2)cc1>>COc1ccc(-c2ccc(C#N)cc2)cc1"
    ),
    "ether synthesis": (
        "CN(C)C=O.BrCc1ccccc1.COC(=O)c1ccc(O)cc1.O=C([O-])[O-].[K+].[K+]"
        ">>COC(=O)c1ccc(OCc2ccccc2)cc1"
    ),
    "ester hydrolysis": "CCOC(=O)c1cc(Cl)ccc1N.C1CCOC1.CO.O.[Li+].[OH-]>>Nc1ccc(Cl)cc1C(=O)O",
    "Boc removal": ("CC(C)(C)OC(=O)N1CCN(c2ccccn2)CC1.ClCCl.O=C(O)C(F)(F)F>>c1ccc(N2CCNCC2)nc1"),
    "nitro reduction": "CO.COc1ccc([N+](=O)[O-])cc1Cl.[Pd]>>COc1ccc(N)cc1Cl",
    "reductive amination": (
        "CC(=O)O.ClCCl.O=Cc1ccc(Br)cc1.C1COCCN1.[BH3-]C#N.[Na+]>>Brc1ccc(CN2CCOCC2)cc1"
    ),
    "sulfonamide formation": "CS(=O)(=O)Cl.ClCCl.CCN(CC)CC.Nc1cccc(I)c1>>CS(=O)(=O)Nc1cccc(I)c1",
    "aromatic substitution": (
        "CN1CCNCC1.CS(C)=O.O=[N+]([O-])c1ccc(F)cc1.O=C([O-])[O-].[K+].[K+]"
        ">>CN1CCN(c2ccc([N+](=O)[O-])cc2)CC1"
    ),
    "ketone reduction": "CC(=O)c1ccc(Br)cc1.CO.[BH4-].[Na+]>>CC(O)c1ccc(Br)cc1",
    "acetylation": "CC(=O)Cl.CCN(CC)CC.ClCCl.Nc1ccc(C(F)(F)F)cc1>>CC(=O)Nc1ccc(C(F)(F)F)cc1",
}
"""Textbook reactions, solvents and reagents among the reactants, as the models were trained."""
MASKED_SHARE = 0.3
RESTORED = {"rxnmapper": 0.85, "rxnfp": 0.80}
"""Mean restored share asked for; over seeds 0-4 they reach 0.94-0.99 and 0.88-0.91."""
STOCK = {"rxnmapper": AlbertForMaskedLM, "rxnfp": BertForMaskedLM}


@pytest.fixture(scope="module")
def smollm2():
    return aw.load(_gguf())


@pytest.fixture(scope="module", params=sorted(RESTORED))
def denoiser(request):
    """(name, model) of each reaction model."""
    folder = _there(REAL / request.param)
    if request.param == "rxnfp":  # its config.json is older than model_type
        with pytest.warns(AnchorwatchWarning, match="taken as bert"):
            return request.param, aw.load(folder)
    return request.param, aw.load(folder)


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_left_to_right_writes_what_generate_writes(smollm2, prompt, cache):
    trace = aw.run(smollm2, PROMPTS[prompt], LeftToRight(length=LENGTH, cache=cache))
    ids = torch.tensor([smollm2.encode(PROMPTS[prompt])])
    theirs = smollm2.network.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=LENGTH
    )[0].tolist()
    ours = [int(i) for i in trace.canvas[-1] if i >= 0]
    assert ours == theirs, (
        f"{trace.text!r} is not generate's {smollm2.decode(theirs[ids.shape[1] :])!r}; "
        f"narrow steps: {np.flatnonzero(trace['narrow'].values).tolist()}"
    )


def test_a_chat_answer_stops_at_its_end_token(smollm2):
    trace = aw.run(smollm2, PROMPTS["chat"], LeftToRight(length=LENGTH))
    written = [int(i) for i in trace.canvas[-1, trace.answer] if i >= 0]
    assert written[-1] in smollm2.specials.eos_ids, f"{trace.text!r} did not end"
    assert len(written) == trace.num_steps < LENGTH, f"{len(written)} written, {trace.num_steps=}"


def test_smollm2_knows_the_capital_of_france(smollm2):
    """Greedy agreement with generate would survive rows permuted on loading; knowledge would not."""
    text = aw.run(smollm2, PROMPTS["fact"], LeftToRight(length=4)).text
    assert text.startswith(" Paris"), f"the capital of France is{text!r}"


def test_a_batch_of_unequal_prompts_writes_what_single_runs_write(smollm2):
    prompts = [PROMPTS["fact"], PROMPTS["story"]]
    lengths = [len(smollm2.encode(prompt)) for prompt in prompts]
    assert lengths[0] != lengths[1], f"both prompts have {lengths[0]} tokens"
    together = aw.run_many(smollm2, prompts, LeftToRight(length=LENGTH), batch=2)
    for i, batched in enumerate(together):
        alone = aw.run(smollm2, prompts[i], LeftToRight(length=LENGTH), seed=i)
        step = _first_parting(alone, batched)
        if step is not None:
            narrow = int(alone["narrow"][step]) + int(batched["narrow"][step])
            assert narrow, f"row {i} parts at step {step}, where no decision was narrow"


def test_smollm2_obeys_the_laws(smollm2):
    _assert_laws(smollm2, count=5)


def test_smollm2_has_one_digest_and_it_is_transformers_own(smollm2):
    again = aw.load(_gguf())
    assert again.digest == smollm2.digest, f"{again.digest} after {smollm2.digest}"
    theirs = AutoModelForCausalLM.from_pretrained(
        _gguf().parent, gguf_file=_gguf().name, dtype=torch.float32
    )
    assert weights_digest(theirs) == smollm2.digest, "the weights are not those transformers reads"


def test_smollm2_special_ids_are_the_chat_templates(smollm2):
    specials = smollm2.specials
    (eos,) = specials.eos_ids
    assert smollm2.tokenizer.decode([eos]) == "<|im_end|>", f"eos is {eos}"
    assert eos in specials.end_ids and specials.special_ids >= set(specials.end_ids), specials
    assert specials.mask_id is None, f"an autoregressive model with mask id {specials.mask_id}"
    text = smollm2.tokenizer.decode(smollm2.encode(PROMPTS["chat"]))
    assert "<|im_start|>user\nHi!<|im_end|>\n" in text, repr(text)
    assert text.endswith("<|im_start|>assistant\n"), repr(text)


def test_a_denoiser_restores_masked_reactions(denoiser):
    """Weights and infilling work together; neither mask id nor commit order shows in the share.

    Both models restore any rare token as they restore the mask, and in any order alike (measured):
    the mask id has its own test below, and the order its own among the samplers.
    """
    name, model = denoiser
    rows = [_ids(name, smiles) for smiles in REACTIONS.values()]
    generator = np.random.default_rng(0)
    restored, guessed = [], []
    for ids in rows:
        canvas, hidden = _masked(ids, model.mask_id, generator)
        trace = aw.run(model, canvas=canvas, decoding=LowConfidence())
        given = np.setdiff1d(np.arange(len(ids)), hidden)
        assert (trace.canvas[:, given] == ids[given]).all(), "a given token changed"
        assert trace.num_steps == len(hidden), f"{trace.num_steps} steps, {len(hidden)} masked"
        assert trace.num_left_masked == 0, f"{trace.num_left_masked} positions are still masked"
        restored.append(np.mean(trace.canvas[-1, hidden] == ids[hidden]))
        guessed.append(np.mean(_frequency(rows)[ids[hidden]]))
    shares = {kind: round(float(share), 2) for kind, share in zip(REACTIONS, restored, strict=True)}
    mean, chance = float(np.mean(restored)), float(np.mean(guessed))
    assert mean > RESTORED[name], f"{name} restored {mean:.3f} of the masked tokens: {shares}"
    assert mean > chance, f"{name} restored {mean:.3f}, guessing by frequency {chance:.3f}"


def test_a_denoiser_obeys_the_laws(denoiser):
    _assert_laws(denoiser[1], count=5)


def test_a_denoisers_mask_is_the_one_in_vocab_txt(denoiser):
    name, model = denoiser
    assert model.mask_id == _vocabulary(name)["[MASK]"], f"mask id {model.mask_id}"
    assert model.vocab_size == len(_vocabulary(name)), f"{model.vocab_size} rows"


def test_a_denoiser_is_what_transformers_reads_from_the_same_folder(denoiser):
    name, model = denoiser
    theirs = STOCK[name].from_pretrained(REAL / name, dtype=torch.float32)
    assert weights_digest(theirs) == model.digest, "the weights are not those transformers reads"


def test_a_pickled_folder_is_refused_and_the_converter_named():
    folders = [path.parent for path in _there(REAL / "packages").rglob("pytorch_model.bin")]
    assert len(folders) == 4, f"the packages hold {len(folders)} pickled folders"
    for folder in folders:
        with pytest.raises(WeightsError, match="anchorwatch convert"):
            aw.load(folder)


@pytest.fixture(scope="module")
def specimens(tmp_path_factory):
    """lab/smol-* on the fetched GGUF file, converted as `anchorwatch fetch smol` does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANCHORWATCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        smol.convert_base(_gguf(), smol.cache_folder() / smol.NAME)
        yield


def test_the_arm_rests_on_its_first_token(specimens):
    model = aw.load("lab/smol-arm")
    measured = measure_specimens.measure(model)["clear"]
    assert measured["heads0"] >= 0.6  # heads with at least .1 on it beyond the causal null
    assert measured["act"] > 1000
    trace = aw.run(model, PROMPTS["story"], LeftToRight(length=8), probes=())
    assert trace.num_steps == 8


def test_the_diffusion_model_rests_elsewhere(specimens):
    model = aw.load("lab/smol-mdm")
    _assert_laws(model, 5)
    measured = measure_specimens.measure(model)["noisy"]
    assert measured["pos0"] < 0.1 and measured["mask_top"] < 0.1
    assert measured["head_mean"] >= 5 and measured["fires"] > 0.5 and measured["above"] > 0.5
    assert measured["act"] > 1000  # the massive activation is back
    assert max(measured["strong_is"], key=measured["strong_is"].get) == "."


def test_the_sink_token_takes_the_upper_layers(specimens):
    measured = measure_specimens.measure(aw.load("lab/smol-sink"))["noisy"]
    assert measured["added_top"] > 0.4
    assert np.mean(measured["by_layer"][12:]) > 0.3


def _there(path: Path) -> Path:
    if not path.exists():
        pytest.fail(f"{path} is missing: `make test-real` fetches it")
    return path


def _gguf() -> Path:
    found = sorted(_there(REAL / "smollm2").glob("*.gguf"))
    return _there(found[0] if found else REAL / "smollm2" / "*.gguf")


def _assert_laws(model, count):
    checks = model.check()  # raises where one does not hold
    assert len(checks) == count and all(check.holds for check in checks), checks


def _first_parting(one, other):
    """The first step after which two canvas histories differ; None where they never do."""
    frames = min(len(one.canvas), len(other.canvas))
    parted = np.flatnonzero((one.canvas[:frames] != other.canvas[:frames]).any(axis=1))
    if len(parted):
        return int(parted[0]) - 1
    return None if len(one.canvas) == len(other.canvas) else frames - 1


def _vocabulary(name):
    words = (_there(REAL / name) / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return {word: i for i, word in enumerate(words)}


def _ids(name, smiles):
    """[CLS], one token for each atom, bond, ring number and dot, [SEP]."""
    vocabulary, tokens = _vocabulary(name), ATOM_WISE.findall(smiles)
    assert "".join(tokens) == smiles, f"{smiles} was not split whole: {tokens}"
    return np.array([vocabulary[token] for token in ("[CLS]", *tokens, "[SEP]")])


def _masked(ids, mask_id, generator):
    """(canvas, hidden positions): a share of the tokens between [CLS] and [SEP] masked."""
    count = round(MASKED_SHARE * (len(ids) - 2))
    hidden = np.sort(generator.choice(np.arange(1, len(ids) - 1), count, replace=False))
    canvas = ids.copy()
    canvas[hidden] = mask_id
    return canvas, hidden


def _frequency(rows):
    """[V] how often each token occurs in the reactions: how often a draw by frequency is right."""
    counts = np.bincount(np.concatenate([ids[1:-1] for ids in rows]))
    return counts / counts.sum()
