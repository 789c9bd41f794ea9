"""Going over the layers of traces: once for one metric, or once for many of them together.

A metric asks `each_slab` for what its function says of every layer. While `together` is at work the
first asking is only noted down, and the metric put off; then one pass answers everything that was
asked, and each metric is called again, which is the same call because metrics are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any

from anchorwatch.errors import TraceError
from anchorwatch.metrics.reading import LayerSlice, check_traces, slabs
from anchorwatch.trace.progress_bar import Progress
from anchorwatch.trace.trace import Trace

Kernel = Callable[[LayerSlice], Any]
Layers = list[tuple[Trace, list[Any]]]
"""What a kernel said of each layer of each trace."""

THREADS = 2
"""Slabs at work at a time: numpy lets go of the interpreter, and each takes memory."""


@dataclass
class _Shared:
    """What a metric asked of these traces, and the answer once it is there."""

    traces: Sequence[Trace]
    kernel: Kernel | None = None
    answer: Layers | TraceError | None = None


class _PutOff(BaseException):
    """A metric that waits for the pass: no error, and nobody may catch it as one."""


_SHARED: ContextVar[_Shared | None] = ContextVar("_SHARED", default=None)


def each_slab(traces: Trace | Sequence[Trace], kernel: Kernel) -> Layers:
    """What `kernel` says of every layer of every trace."""
    shared, found = _SHARED.get(), check_traces(traces)
    if shared is None or [*map(id, found)] != [*map(id, shared.traces)]:
        return _heard(_over(found, [kernel])[0])
    if shared.answer is None:
        shared.kernel = kernel
        raise _PutOff
    return _heard(shared.answer)


def together(traces: Sequence[Trace], metrics: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """The results of metrics of the same traces, whose layers are read once.

    A metric asks once. A field that a trace lacks is a result too: the TraceError that says so.
    """
    asked = {name: _Shared(traces) for name in metrics}
    results = {name: _attempt(metric, asked[name]) for name, metric in metrics.items()}
    waiting = {name: one.kernel for name, one in asked.items() if one.kernel is not None}
    answers = _over(traces, list(waiting.values())) if waiting else []
    for name, answer in zip(waiting, answers, strict=True):
        results[name] = _attempt(metrics[name], _Shared(traces, answer=answer))
    return results


def _attempt(metric: Callable[[], Any], shared: _Shared) -> Any:
    token = _SHARED.set(shared)
    try:
        return metric()
    except _PutOff:
        return None
    except TraceError as error:
        return error
    finally:
        _SHARED.reset(token)


def _over(traces: Sequence[Trace], kernels: Sequence[Kernel]) -> list[Layers | TraceError]:
    found: list[Layers] = [[(trace, []) for trace in traces] for _ in kernels]
    lost: dict[int, TraceError] = {}

    def look(slab: LayerSlice) -> list[Any]:
        return [
            None if i in lost else _run_kernel(kernel, slab) for i, kernel in enumerate(kernels)
        ]

    total = sum(trace.manifest["model"]["layers"] for trace in traces)
    with Progress("reading", total) as bar, ThreadPoolExecutor(THREADS) as pool:
        for number, trace in enumerate(traces):
            every = slabs(trace)
            while few := list(islice(every, THREADS)):
                for said in pool.map(look, few):
                    for i, one in enumerate(said):
                        found[i][number][1].append(one)
                        if isinstance(one, TraceError):
                            lost.setdefault(i, one)
                    bar.advance()
    return [lost.get(i, layers) for i, layers in enumerate(found)]


def _run_kernel(kernel: Kernel, slab: LayerSlice) -> Any:
    try:
        return kernel(slab)
    except TraceError as error:
        return error


def _heard(answer: Layers | TraceError) -> Layers:
    if isinstance(answer, TraceError):
        raise answer
    return answer
