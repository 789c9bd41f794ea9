"""SPEC.toml files: read as values, checked by pydantic, refused with what would have worked."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from anchorwatch.errors import SpecError
from anchorwatch.trace.input_files import LONGEST_LINE, read_plain

_LONG_KEY = re.compile(r"""(?<![\w"'-])(?:[\w"'-]+\s*\.\s*){100}""")
_TYPE = re.compile(r"str|int|float|bool|.*\[.*|.*Table")
"""Names of types in the paths of pydantic's findings; tables among several types end in Table."""


class Table(BaseModel):
    """A table of the file: no unknown fields, no guessing of types, never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


AnyTable = TypeVar("AnyTable", bound=Table)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a SPEC.toml as they stand there, not checked yet."""
    file = Path(path).expanduser()
    try:
        return parse_toml(read_plain(file, most=LONGEST_LINE).decode("utf-8"))
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read ({error.strerror or error}): give a SPEC.toml"
        ) from None
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or nested without end
        raise SpecError(f"{path} is not TOML: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """TOML as values; the parser's time grows with the square of the parts of a dotted key."""
    if _LONG_KEY.search(text):
        raise ValueError("a key has 100 parts or more")
    return tomllib.loads(text)


def check_table(
    kind: type[AnyTable],
    fields: Mapping[str, Any],
    where: str,
    tables: Mapping[str, type[Table]] | None = None,
) -> AnyTable:
    """The fields as a table of this kind, or a SpecError that says what would have worked.

    Args:
        tables: the kind of the table, or of the tables of the list, under a field's name.
    """
    try:
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        raise SpecError(f"{where}: {_describe(error, kind, tables or {})}") from None


def _describe(error: ValidationError, kind: type[Table], tables: Mapping[str, type[Table]]) -> str:
    """Pydantic's findings; an unknown name is the reason of others, so it stands alone."""
    problems = error.errors()
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    if unknown:
        return "; ".join(_describe_unknown(problem, kind, tables) for problem in unknown)
    # A value that may be of several types is refused once for each: the nearest type says most.
    nearest: dict[Any, Any] = {}
    for problem in problems:
        path = problem["loc"]
        key = path if path == _without_types(path) else path[:1]
        if key not in nearest or len(path) > len(nearest[key]["loc"]):
            nearest[key] = problem
    return "; ".join(map(_describe_problem, nearest.values()))


def _without_types(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """A path without the names of types that pydantic puts into it, such as list[str]."""
    return tuple(step for step in path if not _TYPE.fullmatch(str(step)))


def _describe_unknown(problem: Any, kind: type[Table], tables: Mapping[str, type[Table]]) -> str:
    path = [str(step) for step in _without_types(problem["loc"])]
    table = tables.get(path[0], kind) if len(path) > 1 else kind
    known = [info.alias or name for name, info in table.model_fields.items()]
    near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
    return f"there is no field {'.'.join(path)}: {hint}"


def _describe_problem(problem: Any) -> str:
    field = ".".join(map(str, _without_types(problem["loc"])))
    if problem["type"] == "missing":
        return f"{field} is missing: say {field} = ..."
    message = problem["msg"].removeprefix("Value error, ")
    given = problem["input"]
    if problem["type"] == "list_type" and isinstance(given, str | int | float):
        return f"{field} = {json.dumps(given)} is no list: say {field} = [{json.dumps(given)}]"
    if problem["type"] == "too_short":
        return f"{field} is empty: name at least one"
    if isinstance(given, str | int | float | bool):
        return f"{field} = {given!r}: {message[:1].lower()}{message[1:]}"
    return f"{field}: {message}" if field else message
