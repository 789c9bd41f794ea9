"""What is shipped: the built page in wheel and sdist, nothing of its making, and no need of Node."""

import email
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = {"anchorwatch/explorer/built/app.js", "anchorwatch/explorer/built/app.css"}

LARGEST_FILE = 100 * 2**20
"""Bytes of a file that a package index takes unasked."""


def build(root, kind, out, **env):
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    held = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | env
    done = subprocess.run(command, cwd=root, env=held, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = out.iterdir()
    return made


def names(wheel):
    with zipfile.ZipFile(wheel) as held:
        return {one.filename: one.file_size for one in held.infolist()}


def test_the_wheel_has_the_page_and_nothing_of_its_making(tmp_path):
    wheel = build(ROOT, "wheel", tmp_path / "wheel", ANCHORWATCH_WITHOUT_PAGE="1")
    held = names(wheel)
    assert wheel.stat().st_size < LARGEST_FILE
    assert held.keys() >= PAGE
    for name in held:
        assert not re.search(r"\.(ts|svelte|map)$|node_modules|^web/", name), name
    assert sum(held[name] for name in PAGE) < 1_000_000
    check_metadata(read_metadata(wheel))


def read_metadata(wheel):
    with zipfile.ZipFile(wheel) as held:
        (name,) = [name for name in held.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(held.read(name))


def check_metadata(metadata):
    """What a package index shows and pip reads; `twine check` asks for no more."""
    assert metadata["Name"] == "anchorwatch" and metadata["Version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload()
    assert text.startswith("# anchorwatch") and "pip install" in text
    for target in re.findall(r"\]\(([^)]*)\)", text):  # an index has no docs/ of ours
        assert target.startswith("https://"), target
    assert {"run", "train", "eval", "sweep", "explore", "all"} <= set(
        metadata.get_all("Provides-Extra")
    )
    plain = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert plain and not any(line.startswith(("torch", "transformers")) for line in plain)


def test_an_sdist_becomes_a_wheel_without_node(tmp_path):
    sdist = build(ROOT, "sdist", tmp_path / "sdist", ANCHORWATCH_WITHOUT_PAGE="1")
    assert sdist.stat().st_size < LARGEST_FILE
    with tarfile.open(sdist) as held:
        listed = held.getnames()
        assert not any("node_modules" in name for name in listed)
        assert {name.partition("/src/")[2] for name in listed} >= PAGE
        held.extractall(tmp_path / "unpacked", filter="data")
    (root,) = (tmp_path / "unpacked").iterdir()
    wheel = build(root, "wheel", tmp_path / "wheel", PATH="/nowhere")
    assert names(wheel).keys() >= PAGE


@pytest.fixture
def hook():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_newer_source_makes_the_page_stale(hook, tmp_path):
    assert hook.stale(tmp_path)
    page = tmp_path / "src" / "anchorwatch" / "explorer" / "built" / "app.js"
    source = tmp_path / "web" / "src" / "App.svelte"
    for file in (page, source):
        file.parent.mkdir(parents=True)
        file.write_text("x")
    os.utime(page, (time.time() - 100,) * 2)
    assert not hook.stale(tmp_path)  # an sdist is as it was made
    (tmp_path / ".git").mkdir()
    assert hook.stale(tmp_path)
    os.utime(source, (time.time() - 200,) * 2)
    assert not hook.stale(tmp_path)


def test_a_clone_without_node_says_what_it_needs(hook, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"Node 20\.19 or newer.*ANCHORWATCH_WITHOUT_PAGE=1"):
        hook.refuse_old_node()
    for name in ("npm", "node"):
        (tmp_path / name).write_text("#!/bin/sh\necho v18.2.0\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(SystemExit, match=r"v18\.2\.0 is too old, the page needs 20\.19"):
        hook.refuse_old_node()
    (tmp_path / "node").write_text("#!/bin/sh\necho v22.0.0\n")
    hook.refuse_old_node()


def test_the_lock_holds_no_addresses():
    assert "://" not in (ROOT / "web" / "package-lock.json").read_text()


def test_the_page_has_the_colours_of_the_figures():
    import matplotlib
    import numpy as np

    from anchorwatch.figures.style import DIFFERENCE, MAGNITUDE

    text = (ROOT / "web" / "src" / "lib" / "colour.ts").read_text()
    for name, kind in (("MAGNITUDE", MAGNITUDE), ("DIFFERENCE", DIFFERENCE)):
        spelled = re.search(rf'{name} =\s*"([0-9a-f]+)"', text)[1]
        stops = np.array([int(spelled[at : at + 2], 16) for at in range(0, len(spelled), 2)])
        wanted = matplotlib.colormaps[kind](np.linspace(0, 1, len(stops) // 3))[:, :3] * 255
        np.testing.assert_array_equal(stops.reshape(-1, 3), np.rint(wanted))
