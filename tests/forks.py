"""Types commands in children of one process, which only imports what is slow to import.

It reads a line of JSON for each command, `{words, cwd, stdin, stdout, stderr}` with files for the
streams, forks a child that runs it there, and writes how it ended. `limits` are seconds and
bytes of address space that the child may take; 0 is no limit.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import scipy.stats
import torch
import transformers.modeling_utils
import xarray as xr
import zarr

import anchorwatch.cli.app
import anchorwatch.evaluation.effect
import anchorwatch.evaluation.grid
import anchorwatch.models.load
import anchorwatch.training.loop

IMPORTED = (plt, pd, scipy.stats, torch, transformers.modeling_utils, xr, zarr, anchorwatch)


def typed(words, streams):
    """Run a command as the entry point does, its streams being files; its exit code."""
    kinds = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
    for at, (name, mode) in enumerate(kinds):
        with Path(streams[name]).open(f"{mode}b") as file:
            os.dup2(file.fileno(), at)
        setattr(sys, name, os.fdopen(at, mode, encoding="utf-8", closefd=False))
    sys.argv = ["anchorwatch", *words]
    try:
        anchorwatch.cli.app.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def child(words, cwd, limits, streams):
    os.chdir(cwd)
    signal.alarm(limits[0])
    if limits[1]:
        resource.setrlimit(resource.RLIMIT_AS, (limits[1], limits[1]))
    code = 1
    try:
        code = typed(words, streams)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main():
    sys.path.pop(0)  # where this file is: a person's command has no such place
    for line in sys.stdin:
        asked = json.loads(line)
        number = os.fork()
        if number == 0:
            child(asked.pop("words"), asked.pop("cwd"), asked.pop("limits"), asked)
        _, status = os.waitpid(number, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
