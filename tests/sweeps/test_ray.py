"""Sweeps on Ray: a cluster of two nodes on loopback, whose workers and nodes are killed."""

import json
import os
import subprocess
import sys

import pytest

from anchorwatch.errors import AnchorwatchError
from anchorwatch.models.engines.choose import EngineOptions
from anchorwatch.sweeps.sweep import sweep
from anchorwatch.trace.cells import open_cells
from kill_sweeps import folder_bytes, spec_of, start_cluster, torture
from waiting import wait_until

pytestmark = pytest.mark.slow
FIELDS = {
    "models": ["tiny/llada"],
    "prompts": ["the anchor", "the ship " * 400],
    "decodings": {"short": "low-confidence:length=2"},
    "seeds": [0, 1],
}


@pytest.fixture
def cluster():
    import ray

    cluster, kill_node = start_cluster()
    yield cluster.address, kill_node
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_ray_makes_the_same_bytes_and_records_failures(cluster, tmp_path, monkeypatch):
    """Workers see a relative path from the driver's folder, and are as many as the cluster's cores."""
    options = EngineOptions("ray", address=cluster[0])
    monkeypatch.chdir(tmp_path)
    result = sweep(FIELDS, "R", engine=options)
    assert (result.computed, len(result.failed), result.exit_code) == (2, 2, 3)
    sweep(FIELDS, tmp_path / "calm", workers=0)
    assert folder_bytes(tmp_path / "R") == folder_bytes(tmp_path / "calm")


@pytest.mark.filterwarnings("ignore")
def test_killed_workers_and_a_killed_node_lose_nothing(cluster, tmp_path):
    address, kill_node = cluster
    options = EngineOptions("ray", workers=2, address=address)
    left = torture(tmp_path, 16, 2, options, kill_node)
    assert left["committed"] == 16
    assert left["equal_bytes"]
    assert left["node_killed"]
    assert (left["failed"], left["damaged"]) == (0, 0)
    assert left["computed_twice"] <= left["kills"] + 2


@pytest.mark.filterwarnings("ignore")
def test_a_killed_driver_is_gone_on_from(cluster, tmp_path):
    code = (
        "import json,sys; from anchorwatch.models.engines.choose import EngineOptions; "
        "from anchorwatch.sweeps.sweep import sweep; "
        "sweep(json.loads(sys.argv[1]), sys.argv[2], "
        "engine=EngineOptions('ray', workers=2, address=sys.argv[3]))"
    )
    spec = spec_of(16)
    words = [sys.executable, "-c", code, json.dumps(spec), str(tmp_path / "R"), cluster[0]]
    driver = subprocess.Popen(words, env=os.environ)
    wait_until(lambda: len(open_cells(tmp_path / "R").done()) >= 2, "two cells")
    driver.kill()
    driver.wait()
    result = sweep(spec, tmp_path / "R", workers=0)
    assert result.exit_code == 0
    assert len(open_cells(tmp_path / "R").done()) == 16


@pytest.mark.filterwarnings("ignore")
def test_workers_of_other_versions_are_refused(cluster, tmp_path, monkeypatch):
    from anchorwatch.models.engines import on_ray

    monkeypatch.setattr(on_ray, "versions", lambda: {"torch": "0.1"})
    options = EngineOptions("ray", workers=1, address=cluster[0])
    with pytest.raises(AnchorwatchError, match=r"no worker is left .* instead of 0\.1"):
        sweep(FIELDS, tmp_path / "R", engine=options)
