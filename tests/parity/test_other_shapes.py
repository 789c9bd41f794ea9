"""Released families in shapes that no record has, against a twin that shares no code with ours.

Numbers of experts, groups, heads and layers, sizes of heads, tied embeddings, partial rotary
embeddings, shared experts and dense layers are drawn; see tests/references/released_models.py.
"""

import functools
import warnings

import pytest
import torch

import anchorwatch as aw
import tolerances
from checkpoints import write
from references import samplers
from references.released_models import EOS, KINDS, MASK, Twin, draw

SEEDS = range(10)
BLOCKS = ("sdar", "sdar-moe", "llada2")
SHIFTED = ("dream", "rnd1")
CASES = [(kind, seed) for kind in KINDS for seed in SEEDS]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    @functools.cache
    def load(kind, seed):
        """(our model, its twin)."""
        config, tensors = draw(kind, seed)
        folder = write(tmp_path_factory.mktemp(f"{kind}-{seed}"), config, tensors)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return aw.load(folder), Twin(config, tensors)

    return load


def in_blocks(length, block):
    number = torch.arange(length) // block
    return number[:, None] >= number[None, :]


def canvas_of(seed, length):
    ids = torch.randint(0, 88, (length,), generator=torch.Generator().manual_seed(seed))
    ids[torch.rand(length, generator=torch.Generator().manual_seed(seed + 1)) < 0.4] = MASK
    return ids


def prompt_of(seed, length):
    return [7 if token == MASK else token for token in canvas_of(seed, length).tolist()]


def align(kind, rows):
    """Raw rows as rows about their own position; the first of a shifted model is about nothing."""
    return torch.cat([rows[:1] * torch.nan, rows[:-1]]) if kind in SHIFTED else rows


def differ(ours, theirs):
    return float((ours - theirs)[~theirs.isnan()].abs().max())


def logits_and_experts(model, ids, block):
    """Logits of one pass, and by layer the experts that it chose."""
    chosen, hooks = {}, []
    for layer, module in enumerate(model.network.model.layers):
        if hasattr(module.mlp, "experts"):
            hook = module.mlp.gate.register_forward_hook(
                lambda _, __, out, layer=layer: chosen.update({layer: out[2]})
            )
            hooks.append(hook)
    logits = model.logits(ids, block=block)
    for hook in hooks:
        hook.remove()
    return logits, chosen


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_logits_and_experts(pair, kind, seed):
    model, twin = pair(kind, seed)
    assert model.family.name == kind
    ids = canvas_of(seed, 11 + seed)
    for block in (3, 4, 8) if kind in BLOCKS else (None,):
        visible = None if block is None else in_blocks(len(ids), block)
        twin.experts.clear()
        theirs = align(kind, twin(ids, visible))
        ours, chosen = logits_and_experts(model, ids, block)
        assert twin.margin > 1e-5  # this draw is no tie: other machines choose the same experts
        assert float(theirs.nan_to_num().abs().max()) > 2
        assert differ(ours.double(), theirs) <= tolerances.RECORDS
        assert chosen.keys() == twin.experts.keys()
        for layer, experts in chosen.items():
            assert torch.equal(experts.sort(-1).values, twin.experts[layer])


DEFAULTS = {
    # What the released config class says where config.json does not.
    "llada2": {
        "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "partial_rotary_factor": 0.5,
        "first_k_dense_replace": 0, "rms_norm_eps": 1e-5,
    },
    "llada-moe": {"rms_norm_eps": 1e-5},
    "rnd1": {"norm_topk_prob": True, "rms_norm_eps": 1e-6},
    "llada": {"rms_norm_eps": 1e-5, "rope_theta": 10000.0},
    "sdar": {"rms_norm_eps": 1e-6},
    "dream": {"rms_norm_eps": 1e-6},
}  # fmt: skip


def differs_from_twin(folder, config, tensors, left_out=()):
    """Loaded from a config.json that lacks some fields, against a twin that reads all of them."""
    said = {name: value for name, value in config.items() if name not in left_out}
    model, twin = aw.load(write(folder, said, tensors)), Twin(config, tensors)
    kind, ids = model.family.name, canvas_of(3, 14)
    visible = None if model.block is None else in_blocks(len(ids), model.block)
    return differ(model.logits(ids).double(), align(kind, twin(ids, visible)))


@pytest.mark.parametrize(("kind", "name"), [(k, name) for k in DEFAULTS for name in DEFAULTS[k]])
def test_a_field_that_config_json_leaves_out_is_the_released_class_s(tmp_path, kind, name):
    fields = DEFAULTS[kind]
    if kind == "llada2":  # groups of two
        fields = fields | {"num_experts": 16, "num_experts_per_tok": 3}
    config, tensors = draw(kind, 1, **fields)
    assert differs_from_twin(tmp_path / "m", config, tensors, (name,)) <= tolerances.RECORDS


def test_llada_moe_has_as_many_key_heads_as_heads_unless_it_says(tmp_path):
    config, tensors = draw(
        "llada-moe", 4, hidden_size=48, num_attention_heads=6, num_key_value_heads=6
    )
    left_out = ("num_key_value_heads",)
    assert differs_from_twin(tmp_path / "m", config, tensors, left_out) <= tolerances.RECORDS


@pytest.mark.parametrize(("bias", "norms"), [(True, True), (False, False), (True, False)])
def test_llada2_with_biases_or_without_norms_of_queries_and_keys(tmp_path, bias, norms):
    config, tensors = draw("llada2", 2, use_qkv_bias=bias, use_qk_norm=norms)
    for name in [name for name in tensors if name.endswith("query_key_value.weight")]:
        if bias:
            rows, numbers = len(tensors[name]), torch.Generator().manual_seed(1)
            tensors[name.replace("weight", "bias")] = torch.randn(rows, generator=numbers)
    if not norms:
        lost = ("query_layernorm.weight", "key_layernorm.weight")
        tensors = {name: t for name, t in tensors.items() if not name.endswith(lost)}
    assert differs_from_twin(tmp_path / "m", config, tensors) <= tolerances.RECORDS


@pytest.mark.parametrize(
    ("kind", "changes", "left_out", "says"),
    [
        ("sdar-moe", {}, "norm_topk_prob", "no norm_topk_prob: copy it from the released"),
        ("llada2", {"rotary_dim": 6}, "partial_rotary_factor", "rotary_dim=6 of heads of"),
        ("llada2", {}, "rope_theta", "no rope_theta: copy it from the released"),
    ],
)
def test_a_field_that_no_class_settles_is_asked_for(tmp_path, kind, changes, left_out, says):
    config, tensors = draw(kind, 1, **changes)
    with pytest.raises(aw.errors.ModelError, match=says):
        differs_from_twin(tmp_path / "m", config, tensors, (left_out,))


@pytest.mark.parametrize("kind", ["sdar", "sdar-moe"])
def test_sdar_s_block_size_is_warned_of_where_it_is_assumed(tmp_path, kind):
    config, tensors = draw(kind, 1)
    with pytest.warns(aw.errors.AnchorwatchWarning, match=r"taken as 4, .* add block_size to it"):
        assert differs_from_twin(tmp_path / "m", config, tensors, ("block_size",)) < 1e-4


@pytest.mark.parametrize("kind", ["llada", "llada-moe"])
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_logits_of_a_padded_row(pair, kind, seed):
    """Padded on the left, positions counted from the first column, as the authors do."""
    model, twin = pair(kind, seed)
    ids, pads = canvas_of(seed, 14), 5
    visible = torch.ones(14, 14, dtype=torch.bool)
    visible[:, :pads] = False
    both = torch.stack([ids, canvas_of(seed + 50, 14)])
    ours = model.logits(both, padding=torch.tensor([pads, 0]))[0, pads:]
    assert differ(ours.double(), twin(ids, visible)[pads:]) <= tolerances.RECORDS


def asking(kind, twin, block=None):
    """What the plain samplers ask: aligned logits of a canvas [T] or [1, T]."""

    def ask(canvas):
        row = canvas.reshape(-1)
        visible = None if block is None else in_blocks(len(row), block)
        return align(kind, twin(row, visible)).float().reshape(*canvas.shape, -1)

    return ask


def same_frames(trace, theirs):
    """Whether a run was compared with its twin: a tie within rounding is the machine's to break."""
    if trace["narrow"].sum():
        return False
    assert trace.canvas.tolist() == theirs.tolist()
    return True


def most(compared):
    """At most a single run of a test hung on a tie."""
    return sum(compared) >= len(compared) - 1 > 0


RUNS = [
    # prompt, length, block, steps: neither prompt nor answer need be whole blocks
    (4, 8, 4, 4), (5, 7, 4, 3), (1, 12, 8, 8), (9, 3, 8, 5), (3, 10, 5, 2), (12, 9, 6, None),
]  # fmt: skip
ORDERS = ("dynamic", "static", "sequential")


@pytest.mark.parametrize("run", RUNS, ids=str)
@pytest.mark.parametrize("kind", BLOCKS)
def test_block_diffusion(pair, kind, run):
    """SDAR's and LLaDA2.0's generate, with and without the exact cache."""
    count, length, block, steps = run
    compared = []
    for seed in SEEDS[:3]:
        model, twin = pair(kind, seed)
        prompt = prompt_of(seed + 9, count)
        order, threshold = ORDERS[(seed + RUNS.index(run)) % 3], (0.3, 0.9, 0.6)[seed]
        how = {"block": block, "order": order, "threshold": threshold}
        how |= {"stop": ("never", "block", "token")[seed], "stop_ids": (*EOS, 3, 17, 40)}
        theirs = samplers.block_diffusion(
            asking(kind, twin, block), prompt, MASK, length=length, steps=steps, **how
        )
        for cache in (False, True):
            decoding = aw.decoding.BlockDiffusion(length, steps, cache=cache, **how)
            compared.append(same_frames(aw.run(model, prompt, decoding, probes=()), theirs))
    assert most(compared)


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_token_editing(pair, run):
    """LLaDA2.1's generate, with and without the exact cache."""
    count, length, block, _ = run
    rewritten, compared = 0, []
    for seed in SEEDS[:3]:
        model, twin = pair("llada2", seed)
        prompt = prompt_of(seed + 9, count)
        how = {"block": block, "threshold": (0.2, 0.5, 0.8)[seed], "editing_threshold": 0.25}
        how |= {"max_post_steps": 1 + seed, "least": 1 + seed % 2, "stop_ids": EOS}
        how |= {"stop": ("never", "block", "block")[seed]}
        theirs = samplers.token_editing(
            asking("llada2", twin, block), prompt, MASK, length=length, **how
        )
        changed = (theirs[:-1] != theirs[1:]) & (theirs[:-1] != MASK)
        rewritten += int(changed.sum())
        for cache in (False, True):
            decoding = aw.decoding.TokenEditing(length, cache=cache, **how)
            compared.append(same_frames(aw.run(model, prompt, decoding, probes=()), theirs))
    assert rewritten and most(compared)


@pytest.mark.parametrize("shape", [(8, 8, 8), (12, 6, 4), (9, 5, 9), (10, 4, 5)], ids=str)
@pytest.mark.parametrize("kind", ["llada", "llada-moe"])
def test_llada_s_generate(pair, kind, shape):
    length, steps, block = shape
    compared = []
    for seed in SEEDS[:4]:
        model, twin = pair(kind, seed)
        prompt = prompt_of(seed, 5 + seed)
        theirs = samplers.llada(
            asking(kind, twin), prompt, MASK, length=length, steps=steps, block=block,
            temperature=0.0, guidance=0.0, order="low_confidence",
        )  # fmt: skip
        decoding = aw.decoding.LowConfidence(length, steps, block=block)
        compared.append(same_frames(aw.run(model, prompt, decoding, probes=()), theirs))
    assert most(compared)


@pytest.mark.parametrize("algorithm", ["maskgit_plus", "topk_margin", "entropy"])
def test_dream_s_diffusion_generate(pair, algorithm):
    compared = []
    for seed in SEEDS[:4]:
        model, twin = pair("dream", seed)
        prompt = prompt_of(seed, 5 + seed)
        theirs = samplers.dream(
            asking("dream", twin), prompt, MASK, length=9, steps=5, algorithm=algorithm
        )
        decoding = aw.decoding.DreamOrder(9, 5, algorithm=algorithm)
        compared.append(same_frames(aw.run(model, prompt, decoding, probes=()), theirs))
    assert most(compared)


@pytest.mark.parametrize("bound", [None, 0.5, 4.0])
def test_rnd1_s_diffusion_sample(pair, bound):
    compared = []
    for seed in SEEDS[:4]:
        model, twin = pair("rnd1", seed)
        canvas = prompt_of(seed, 5 + seed)
        canvas += [MASK] * (7 + seed) + [EOS[0]]
        theirs = samplers.rnd1(
            asking("rnd1", twin), canvas, MASK, steps=4 + seed, entropy_bound=bound
        )
        decoding = aw.decoding.EntropyOrder(7 + seed, 4 + seed, entropy_bound=bound)
        trace = aw.run(model, canvas=canvas, decoding=decoding, probes=())
        compared.append(same_frames(trace, theirs))
    assert most(compared)


@pytest.mark.parametrize("cache", ["prefix", "dual", 2, 3], ids=str)
@pytest.mark.parametrize("kind", ["llada", "llada-moe"])
def test_approximate_caches(pair, kind, cache):
    """Fast-dLLM's two and dKV-Cache-Decode: frames and the rows of every pass."""
    named = {"prefix": aw.caches.prefix(), "dual": aw.caches.dual()}
    mine, compared = named.get(cache) or aw.caches.delayed(cache), []
    for seed, (length, block, steps) in enumerate([(8, 8, 4), (12, 4, 6), (15, 5, 15), (12, 6, 8)]):
        model, twin = pair(kind, seed)
        prompt = prompt_of(seed, 6 + seed)
        for threshold in (None, 0.3) if cache in named else (None,):
            twin.kept.clear()
            theirs, rows = samplers.fast_dllm_cached(
                lambda canvas, rows, twin=twin: twin(canvas, rows=rows), prompt, MASK,
                length=length, block=block, cache=cache, threshold=threshold,
                steps=steps if threshold is None else None,
            )  # fmt: skip
            decoding = aw.decoding.LowConfidence(length, steps, block=block, cache=mine)
            if threshold is not None:
                decoding = aw.decoding.Threshold(
                    length, block=block, threshold=threshold, cache=mine
                )
            trace = aw.run(model, prompt, decoding, probes=())
            compared.append(same_frames(trace, theirs))
            if compared[-1]:
                computed = [row.nonzero()[0].tolist() for row in trace["row_computed"].values]
                assert computed == rows
    assert most(compared)


def test_the_draws_cover_what_checkpoints_differ_in():
    drawn = {kind: [draw(kind, seed)[0] for seed in SEEDS] for kind in KINDS}
    llada2 = drawn["llada2"]
    for name in ("num_shared_experts", "first_k_dense_replace", "n_group", "topk_group"):
        assert len({config[name] for config in llada2}) > 1, name
    assert len({config["num_experts_per_tok"] for config in llada2}) > 2
    assert {config["partial_rotary_factor"] for config in llada2} == {0.5, 1.0}
    for kind in KINDS:
        tying = "weight_tying" if kind == "llada" else "tie_word_embeddings"
        assert {config[tying] for config in drawn[kind]} == {False, True}
        heads = "n_heads" if kind == "llada" else "num_attention_heads"
        groups = "n_kv_heads" if kind == "llada" else "num_key_value_heads"
        assert len({config[heads] // config[groups] for config in drawn[kind]}) > 1
    for kind in BLOCKS:
        assert any(
            config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]
            for config in drawn[kind]
        )
    assert all(tuple(config["eos_token_id"]) == EOS for config in llada2)
