"""`anchorwatch train`: one call, its model on stdout, talk on stderr."""

import pytest

from anchorwatch.errors import SpecError
from command import called, type_in

SPEC = """
length = 96
batch = 4
updates = 3
[model]
layers = 1
width = 32
heads = 4
[objective]
answer_only = 0.5
[corpus]
vocabulary = 512
mix = [{kind = "questions"}]
"""


def test_a_spec_is_trained_gone_on_with_and_refused(tmp_path):
    spec, out = tmp_path / "SPEC.toml", tmp_path / "run"
    spec.write_text(SPEC)
    first = type_in("train", spec, "-o", out, "--set", "optimizer.lr=1e-3", fresh=True)
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"{out / 'model'}\n"
    assert "3 updates" in first.stderr
    assert "1 process:" in first.stderr
    said = called("train", spec, "-o", out, "--set", "optimizer.lr=1e-3")
    assert (said["updates"], said["resumed_at"], said["processes"]) == (3, 3, 1)
    with pytest.raises(SpecError, match=r"spec.optimizer.lr is 0.001 there and 0.0002 here"):
        called("train", spec, "-o", out)
    with pytest.raises(SpecError, match=r"no field optimizer.lrr: did you mean lr\?"):
        called("train", spec, "-o", out, "--set", "optimizer.lrr=1")
