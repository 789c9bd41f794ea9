"""Writes web/src/lib/schema.ts from the Python half: `python web/make_schema.py`, or `make web`.

The roles, the header's fields and the arrays of packets stand once, in trace/schema.py and in
explorer/contract.py. With --check nothing is written; the exit code is 1 where the file is stale.
"""

import sys
import types
import typing
from pathlib import Path

from anchorwatch.explorer.contract import HEADER_TYPES, PACKETS
from anchorwatch.trace.schema import MISSING, ROLES

TARGET = Path(__file__).parent / "src" / "lib" / "schema.ts"
ARRAYS = {"u1": "Uint8Array", "i4": "Int32Array", "f4": "Float32Array"}
SIMPLE = {int: "number", float: "number", str: "string", bool: "boolean", types.NoneType: "null"}


def main() -> None:
    text = schema()
    if "--check" in sys.argv:
        sys.exit(TARGET.read_text(encoding="utf-8") != text)
    TARGET.write_text(text, encoding="utf-8")


def schema() -> str:
    """The whole file."""
    parts = ["/** Written by web/make_schema.py from the Python half: do not edit. */"]
    parts.append(f"/** An integer that does not exist. */\nexport const MISSING = {MISSING};")
    codes = [f"export const {name.upper()} = {code};" for code, name in enumerate(ROLES)]
    parts.append("/** What a position is at a frame. */\n" + "\n".join(codes))
    parts += [interface(kind) for kind in HEADER_TYPES]
    lines = ["/** The arrays of each kind of packet. */", "export interface Packets {"]
    for kind, arrays in PACKETS.items():
        fields = "; ".join(f"{name}: {ARRAYS[dtype]}" for name, dtype in arrays.items())
        lines.append(f"  {kind}: {{ {fields} }};")
    parts.append("\n".join([*lines, "}"]))
    return "\n\n".join(parts) + "\n"


def interface(kind: type) -> str:
    """A TypedDict as an interface; what is annotated with words has them above it."""
    lines = [f"/** {(kind.__doc__ or '').strip()} */", f"export interface {kind.__name__} {{"]
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        mark = ""
        if typing.get_origin(hint) is typing.NotRequired:
            mark, (hint,) = "?", typing.get_args(hint)
        if typing.get_origin(hint) is typing.Annotated:
            hint, words = typing.get_args(hint)
            lines.append(f"  /** {words} */")
        lines.append(f"  {name}{mark}: {to_typescript(hint)};")
    return "\n".join([*lines, "}"])


def to_typescript(hint: object) -> str:
    """A Python type as TypeScript has it."""
    if isinstance(hint, type) and hint in SIMPLE:
        return SIMPLE[hint]
    if typing.is_typeddict(hint):
        return hint.__name__
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return f"{to_typescript(args[0])}[]"
    if origin is typing.Literal:
        return " | ".join(f'"{word}"' for word in args)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(to_typescript(arg) for arg in args)
    raise TypeError(f"{hint} has no type in the page: add it to web/make_schema.py")


if __name__ == "__main__":
    main()
