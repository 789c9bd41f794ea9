"""What a command that runs a model imports: the half of transformers that computes.

Importing `transformers.modeling_utils` also imports scipy.optimize (losses of object detection),
torch.distributed.tensor (sharding), torch._dynamo (compiling) and accelerate (offloading): about
1,300 modules and half of a command's start. A command that runs a model calls none of them. While
transformers is imported here, names from those packages are stand-ins that import the package when
they are first used. Only the process of a command does so: in Python and in notebooks, where the
process belongs to someone else, imports are left as they are.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

DEFERRED = (
    "accelerate",
    "scipy",
    "torch._dynamo",
    "torch.distributed._composable",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.attention.flex_attention",
)
"""Packages that transformers imports and running a model does not use."""

_own_process = False


def claim_process() -> None:
    """Say that this process is a command's own: what it imports concerns nobody else."""
    global _own_process
    _own_process = True


def import_for_running() -> None:
    """Import what loads and runs a model, in a command's own process without what is deferred."""
    if not _own_process or "transformers" in sys.modules:
        return
    with defer_imports(DEFERRED):
        import_module("transformers.generation.utils")  # every modelling class is one that writes
        import_module("anchorwatch.models.load")
        import_module("anchorwatch.generation.run")


@contextmanager
def defer_imports(packages: Sequence[str]) -> Iterator[None]:
    """Give modules of transformers that are imported meanwhile stand-ins for these packages.

    Only `from package import name` is deferred, and only of a package that is not imported yet.
    """
    import torch

    real_import = builtins.__import__

    def import_or_defer(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        importer = str((globals or {}).get("__name__") or "")
        inside = name.startswith(tuple(f"{package}." for package in packages)) or name in packages
        if not (inside and fromlist and importer.startswith("transformers.")):
            return real_import(name, globals, locals, fromlist or (), level)
        if name in sys.modules:
            return real_import(name, globals, locals, fromlist, level)
        return _DeferredModule(name)

    # Decorators that only tell torch.compile how to treat a function import all of dynamo: a
    # command compiles nothing, so they may leave functions as they are.
    marks = {name: getattr(torch.compiler, name) for name in ("disable", "allow_in_graph")}
    dynamo_absent = "torch._dynamo" not in sys.modules
    builtins.__import__ = import_or_defer
    try:
        if dynamo_absent:
            for name in marks:
                setattr(torch.compiler, name, _leave_as_is)
            vars(torch)["_dynamo"] = _DynamoMarks
        yield
    finally:
        builtins.__import__ = real_import
        if dynamo_absent:
            for name, mark in marks.items():
                setattr(torch.compiler, name, mark)
            # From here on torch's own attribute imports the package when it is asked for.
            if vars(torch).get("_dynamo") is _DynamoMarks:
                del vars(torch)["_dynamo"]


def _leave_as_is(function: Any = None, *_: Any, **__: Any) -> Any:
    """A decorator, with or without settings, that returns the function itself."""
    return function if callable(function) else _leave_as_is


class _DynamoMarks:
    """The marks of torch._dynamo that stand above functions of transformers."""

    allow_in_graph = assume_constant_result = disable = staticmethod(_leave_as_is)


class _DeferredModule(ModuleType):
    """A package whose names are stand-ins."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = self.__name__
        return Deferred(f"{module}.{name}", lambda: getattr(import_module(module), name), module)


class Deferred:
    """A value that is imported, or computed by calling such a value, at its first use.

    While `defer_imports` is on, calling gives another stand-in: transformers makes constants such
    as `Replicate()` when it is imported.
    """

    def __init__(self, name: str, make: Callable[[], Any], module: str) -> None:
        self._name, self._make, self._module = name, make, module

    def resolve(self) -> Any:
        """The value itself; imports its package."""
        return self._make()

    def __call__(self, *values: Any, **named: Any) -> Any:
        if builtins.__import__.__name__ == "import_or_defer":
            called = f"{self._name}(...)"
            return Deferred(called, lambda: self.resolve()(*values, **named), self._module)
        return self.resolve()(*values, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by inspection of functions, which must not import
            raise AttributeError(name)
        return getattr(self.resolve(), name)

    def __instancecheck__(self, value: Any) -> bool:
        # Of a class whose module was never imported there is no instance.
        return self._module in sys.modules and isinstance(value, self.resolve())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.resolve(),)

    def __or__(self, other: Any) -> Any:  # `Deferred | None` in annotations
        return Any

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<{self._name}, imported when it is used>"
