"""Two processes train what one trains, with the same global batch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from anchorwatch.training import fit
from tolerances import SHARED_LOSS
from toy_texts import Texts, tokenizer
from waiting import GUARD

SCRIPT = Path(__file__).with_name("shared.py")
sys.path.insert(0, str(SCRIPT.parent))

from shared import SPECS  # noqa: E402


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each rank of two processes said, by kind."""
    folder = tmp_path_factory.mktemp("two")
    words = [sys.executable, str(SCRIPT), str(folder), "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=GUARD)
    assert done.returncode == 0, done.stderr
    return {
        kind: [json.loads((folder / f"{kind}.rank{rank}.json").read_text()) for rank in (0, 1)]
        for kind in SPECS
    }


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.slow
def test_two_processes_have_the_loss_of_one(kind, two, tmp_path):
    alone = fit(SPECS[kind], tmp_path / "one", corpus=Texts(), tokenizer=tokenizer())
    first, second = two[kind]
    # A launcher may start fewer than it was asked for: one process would agree with itself.
    assert (alone.processes, first["processes"], second["processes"]) == (1, 2, 2)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["losses"] == second["losses"]
    assert first["tokens"] == alone.tokens
    losses = [line.loss for line in alone.lines]
    assert first["losses"] == pytest.approx(losses, abs=SHARED_LOSS)
