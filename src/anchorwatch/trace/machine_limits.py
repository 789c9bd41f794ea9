"""What a machine has and what no machine finishes: a request beyond it is refused by its plan.

Bytes that are compared here are a lower bound of what a request takes, so that nothing is refused
that might have fitted. No torch here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from anchorwatch.errors import SpecError

MOST_PASSES = 10**9
"""Forward passes of one request: at a thousand each second, eleven days and a half."""

_GROUPS = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """The most a process can hold here: memory and swap, or less where a limit is set."""
    return min([*_of_machine(), *_of_groups(), *_of_process()], default=sys.maxsize)


def refuse_bytes(needed: int, what: str, fewer: str, *, most: int | None = None) -> None:
    """Refuse `what` where it takes more memory than there is; `fewer` says what would fit."""
    have = memory_bytes() if most is None else most
    if needed > have:
        raise SpecError(
            f"{what} would take at least {size(needed)} of memory and there are {size(have)}: "
            f"{fewer}"
        )


def refuse_passes(passes: int, fewer: str) -> None:
    """Refuse what would never end; `fewer` says what would."""
    if passes > MOST_PASSES:
        raise SpecError(
            f"that would be {count(passes)} forward passes and {count(MOST_PASSES)} are the most: "
            f"{fewer}"
        )


def at_most(value: int, *, passes: int = 0, held: int = 0, most: int | None = None) -> int:
    """The greatest number in place of `value` that fits, where passes and bytes grow with it.

    >>> at_most(10**12, passes=10**15)
    1000000
    """
    have = memory_bytes() if most is None else most
    fits = (value * MOST_PASSES // max(passes, 1), value * have // max(held, 1), value)
    return max(1, min(fits))


def count(value: int) -> str:
    """A number as people read it; one with very many digits by how many.

    >>> count(10**9), count(10**40)
    ('1,000,000,000', 'a number with 41 digits')
    """
    if value.bit_length() <= 100:
        return f"{value:,}"
    return f"a number with {int(value.bit_length() * 0.30103) + 1} digits"


def size(number: float) -> str:
    """Bytes as people read them."""
    for unit in ("bytes", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number = number // 1000 if isinstance(number, int) and number > 2**1000 else number / 1000
    return f"{number:.3g} GB" if number < 1e300 else "more than 1e300 GB"


def _of_machine() -> list[int]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        parts = [line.split() for line in lines if line.startswith(("MemTotal:", "SwapTotal:"))]
        if parts:
            return [sum(int(part[1]) for part in parts) * 1024]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    return []


def _of_groups() -> list[int]:
    """Limits of the control groups that a container or a batch system put us in."""
    folders = [_GROUPS, _GROUPS / "memory"]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            own = line.rpartition(":")[2].lstrip("/")
            for root in (_GROUPS, _GROUPS / "memory"):
                own_folder = root / own
                folders += [own_folder, *own_folder.parents]
    limits = []
    for folder in dict.fromkeys(folders):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text(encoding="ascii")))
    return [limit for limit in limits if limit > 0]


def _of_process() -> list[int]:
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return []
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    limits = [resource.getrlimit(kind)[0] for kind in kinds]
    return [limit for limit in limits if limit != resource.RLIM_INFINITY and limit > 0]
