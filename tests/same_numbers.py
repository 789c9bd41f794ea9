"""Compare the numbers of two studies: `python tests/same_numbers.py BEFORE/claims.json AFTER/claims.json`.

For a change that must not move a number. Every verdict, count, effect, interval, null, control and
p-value is compared, to 1e-9; words are not. Exits with 1 and the list of what differs.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LIMIT = 1e-9
CLAIM = ("verdict", "p", "p_holm", "binding", "also")
CRITERION = (
    "n",
    "missing",
    "effect",
    "low",
    "high",
    "level",
    "null",
    "control",
    "detectable",
    "margin",
)


def read_numbers(path: Path) -> dict[str, Any]:
    """Every compared value of a claims.json, by claim, criterion and name."""
    numbers: dict[str, Any] = {}
    for claim in json.loads(path.read_text(encoding="utf-8"))["claims"]:
        for name in CLAIM:
            numbers[f"{claim['id']} {name}"] = claim.get(name)
        for criterion in claim.get("criteria", []):
            for name in CRITERION:
                numbers[f"{claim['id']} {criterion['criterion']} {name}"] = criterion.get(name)
    return numbers


def find_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """A line for each value that is not the same in both."""
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            yield f"{name}: only {'after' if name in after else 'before'}"
        elif not are_same(before[name], after[name]):
            yield f"{name}: {before[name]!r} before, {after[name]!r} after"


def are_same(before: Any, after: Any) -> bool:
    """Whether two JSON values agree, numbers to LIMIT relative to the larger one (or to 1)."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return not any(find_differences(before, after))
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(are_same, before, after))
    if isinstance(before, bool) or not isinstance(before, int | float):
        return bool(before == after)
    if not isinstance(after, int | float):
        return False
    return math.isclose(before, after, rel_tol=LIMIT, abs_tol=LIMIT)


def main() -> None:
    before, after = (read_numbers(Path(name)) for name in sys.argv[1:3])
    differences = list(find_differences(before, after))
    sys.stdout.writelines(f"{line}\n" for line in differences)
    sys.stdout.write(f"{len(before)} values compared, {len(differences)} differ\n")
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
