"""Waiting for something that will happen: no test depends on how long it takes."""

import socket
import time
from collections.abc import Callable

GUARD = 1800.0
"""Seconds after which nothing is coming any more. It only ends what would hang for ever."""


def wait_until(happened: Callable[[], object], what: str) -> None:
    """Ask again until it has happened."""
    deadline = time.monotonic() + GUARD
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


def listens(port: int) -> bool:
    """Whether somebody listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
