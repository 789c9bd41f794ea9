"""Sweeps whose workers are killed at random, compared byte for byte with one that nobody disturbs.

`python tests/kill_sweeps.py --cells 200 --kills 25 --engine local` or `--engine ray`, which also
kills one of two nodes. Prints one line of JSON; exit code 1 if anything was lost.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

from anchorwatch.models.engines.choose import EngineOptions
from anchorwatch.sweeps.sweep import sweep
from anchorwatch.trace.cells import open_cells
from anchorwatch.trace.runs import open_runs

WORKERS = ("anchorwatch.models.engines.worker", "ray::")


def spec_of(cells):
    """A sweep of so many cells on a lab model, of tiny length."""
    return {
        "models": ["lab/toy-mdm"],
        "prompts": ["Passage: Lena was born in Oslo. Question: Where was Lena born? Answer:"],
        "decodings": {"drawn": "low-confidence:length=4,steps=4,temperature=1.0"},
        "edits": {"none": "", "sinks": "hide-sinks:1"},
        "seeds": list(range(cells // 2)),
    }


def folder_bytes(folder):
    root = Path(folder) / "cells"
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def living_workers(folder):
    """Processes that wrote a journal of this folder and still live."""
    pids = {int(path.stem.split("-")[-2]) for path in (Path(folder) / "journal").iterdir()}
    return sorted(pid for pid in pids if _is_worker(pid))


def _is_worker(pid):
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and any(name in words for name in WORKERS)


class Killer:
    """Called after each outcome; kills a worker at random ones, and the node once."""

    def __init__(self, folder, cells, kills, node=None, seed=0):
        self._random = random.Random(seed)
        self._moments = set(self._random.sample(range(1, cells - 2), kills))
        self._node, self._node_at = node, cells // 2
        self._folder, self._count, self.owed = folder, 0, 0
        self.killed, self.node_killed = [], False

    def __call__(self, outcome):
        self._count += 1
        self.owed += self._count in self._moments
        if self._node is not None and not self.node_killed and self._count >= self._node_at:
            self.node_killed = True
            self._node()
        alive = living_workers(self._folder)
        if self.owed and alive:
            pid = self._random.choice(alive)
            os.kill(pid, signal.SIGKILL)
            self.killed.append(pid)
            self.owed -= 1


def torture(folder, cells, kills, engine, node=None):
    """Run a sweep under fire; what is left of it."""
    spec, folder = spec_of(cells), Path(folder)
    sweep(spec, folder / "calm", workers=0)
    killer = Killer(folder / "fire", cells, kills, node)
    result = sweep(spec, folder / "fire", engine=engine, on_outcome=killer)
    begun = Counter(
        line["cell"] for line in open_cells(folder / "fire").journal() if line["event"] == "begin"
    )
    twice = sum(count - 1 for count in begun.values())
    return {
        "cells": cells,
        "committed": len(open_cells(folder / "fire").done()),
        "failed": len(result.failed),
        "kills": len(killer.killed),
        "node_killed": killer.node_killed,
        "damaged": len(open_runs(folder / "fire").damage()),
        "computed_twice": twice,
        "equal_bytes": folder_bytes(folder / "calm") == folder_bytes(folder / "fire"),
        "left_over": len(list((folder / "fire" / "claims").iterdir())),
    }


def _patiently(start):
    """Try again where a busy machine does not start a node within Ray's 30 seconds."""
    for tries_left in range(9, -1, -1):
        try:
            return start()
        except Exception as error:  # Ray raises nothing narrower
            if "timed out during startup" not in str(error) or not tries_left:
                raise
    raise AssertionError("the loop returns or raises")


LOOPBACK = "127.0.0.2"
"""Ray takes 127.0.0.1 in an address for this machine's outer one; this is loopback, too."""


def start_cluster():
    """Two nodes of Ray on this machine's loopback; the cluster, and how to kill its second node."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    given = {"num_cpus": 1, "object_store_memory": 80_000_000, "node_ip_address": LOOPBACK}
    head = given | {"include_dashboard": False}
    cluster = _patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    node = _patiently(lambda: cluster.add_node(**given))

    def kill_node():
        cluster.remove_node(node, allow_graceful=False)
        _patiently(lambda: cluster.add_node(**given))  # as a cluster's manager would replace it

    return cluster, kill_node


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    given = parser.parse_args()
    cluster, kill_node = start_cluster() if given.engine == "ray" else (None, None)
    address = cluster.address if cluster else None
    options = EngineOptions(given.engine, workers=2, address=address)
    try:
        with tempfile.TemporaryDirectory() as folder:
            left = torture(folder, given.cells, given.kills, options, kill_node)
    finally:
        if cluster is not None:
            cluster.shutdown()
    sys.stdout.write(json.dumps({"engine": given.engine} | left) + "\n")
    in_flight = left["kills"] + left["node_killed"] * 2
    good = left["equal_bytes"] and left["committed"] == given.cells and not left["damaged"]
    sys.exit(0 if good and left["computed_twice"] <= in_flight else 1)


if __name__ == "__main__":
    main()
