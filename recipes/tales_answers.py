"""Make `lab/tales-*-answers`: deltas of two of the tales that answer beside distractors.

    python recipes/tales_answers.py            # trains both, writes both; a second call resumes
    python recipes/tales_answers.py --runs DIR # where runs are, or go

Of what training changed in a matrix the directions that matter most are kept, with fewer binary
digits than float16 has, so that a delta takes 1 MB and the wheel stays below 100 MiB. The diffusion
model is trained by adapters, which lose little by that. The autoregressive one begins to tell
passages apart only if all weights are trained; what is kept of them is trained on as adapters.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from export_model import round_digits
from safetensors.torch import load_file, save_file

from anchorwatch.errors import AnchorwatchError
from anchorwatch.models.deltas import FILE, Delta, combine_digests, digest_of
from anchorwatch.models.zoo import MODELS
from anchorwatch.trace.atomic_io import commit, read_record, stage_folder
from anchorwatch.training.checkpoints import MODEL, WEIGHTS
from anchorwatch.training.loop import fit
from anchorwatch.training.spec import read

HERE = Path(__file__).resolve().parent
MDM, ARM, ARM_FIRST = "tales-mdm-answers", "tales-arm-answers", "tales-arm-answers-first"
"""Runs; the models are called as the first two."""
START = "tales-arm-answers-start"
"""What is kept of the first run of the autoregressive one, where the second looks for it."""
RANKS = {MDM: 12, ARM: 14}
"""Directions of each matrix that are kept."""
DIGITS = 7
"""Binary digits of what is shipped."""


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs", "tales"))
    parser.add_argument("--models", type=Path, default=MODELS)
    options = parser.parse_args(words)
    os.chdir(HERE.parent)  # recipes name their files from there
    try:
        runs, models = options.runs, options.models
        fit(read(HERE / "tales-answers.toml"), runs / MDM)
        write_delta(runs / MDM / MODEL, "tales-mdm", models / MDM, RANKS[MDM])
        fit(read(HERE / "tales-answers-arm.toml"), runs / ARM_FIRST)
        first = runs / ARM_FIRST / MODEL
        write_delta(first, "tales-arm", runs / START, RANKS[ARM], None, adapters_only=True)
        start = f"lora.from={json.dumps(str(runs / START))}"
        fit(read(HERE / "tales-answers-arm-adapters.toml", (start,)), runs / ARM)
        write_delta(runs / ARM / MODEL, "tales-arm", models / ARM, RANKS[ARM])
    except AnchorwatchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def write_delta(
    trained: Path,
    base: str,
    target: Path,
    rank: int,
    digits: int | None = DIGITS,
    *,
    adapters_only: bool = False,
) -> None:
    """Write what a trained network has changed of a lab model, in few directions and digits.

    Without `digits` values stay as they are; with `adapters_only` vectors and embeddings are left
    out.
    """
    # 1. What is kept of each tensor that differs.
    old, new = load_file(MODELS / base / WEIGHTS), load_file(trained / WEIGHTS)
    changes = find_changes(old, new, rank)
    if adapters_only:
        changes = {
            name: value
            for name, value in changes.items()
            if ".layers." in name and name.endswith((".up", ".down"))
        }
    # 2. In so many digits, as float16.
    kept = {
        name: value if digits is None else round_digits(value, digits).half()
        for name, value in sorted(changes.items())
    }
    # 3. The digest of the tensors that it changes, so that it fits no other network.
    named = Delta(f"lab/{base}", "", 1.0, kept)
    digest = combine_digests({name: digest_of(old[name]) for name in named.changed_names})
    config = read_record(trained / "config.json")
    config["anchorwatch"]["delta"] = {"from": named.source, "digest": digest, "scale": 1.0}
    with stage_folder(target) as folder:
        tensors = {name: value.contiguous() for name, value in kept.items()}
        save_file(tensors, folder / FILE, metadata={"format": "pt"})
        (folder / FILE).chmod(0o644)  # safetensors lets only its owner read
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        commit(folder)


def find_changes(
    old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor], rank: int
) -> dict[str, torch.Tensor]:
    """Two factors for each matrix that differs, whole tensors for vectors that do."""
    changes = {}
    for name, value in new.items():
        difference = value.float() - old[name].float()
        if not bool(difference.any()):
            continue
        if difference.ndim == 1:
            changes[name] = value.float()
        else:
            stem = name.removesuffix(".weight")
            changes[f"{stem}.up"], changes[f"{stem}.down"] = cut_rank(difference, rank)
    return changes


def cut_rank(matrix: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest matrix of a rank, as [out, rank] and [rank, in] that share its sizes."""
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    roots = sizes[:rank].sqrt()
    return left[:, :rank] * roots, roots[:, None] * right[:rank]


if __name__ == "__main__":
    raise SystemExit(main())
