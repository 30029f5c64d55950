"""One rank's Kineto trace: its collectives, its matrix products, and what else it tells, read event by event.

Times are those of GPU kernels (`ts` and `dur` in microseconds). A kernel belongs to what the CPU did when it was
launched: the launch has the same `correlation` and lies within the operator's time on the same thread. Newer traces
name a collective in the kernel's own arguments; in older ones it is the annotation "nccl:..." around the launch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from foreshard.calibration.imports.json_stream import EVENTS, trace_entries
from foreshard.calibration.imports.source import SourceFile, opened
from foreshard.topologies.errors import InputError

__all__ = ["COLLECTIVE", "CpuOp", "Kernel", "RawTrace", "Thread", "read_trace", "whole"]

_KERNEL = ("kernel", "Kernel")
_OPERATOR = ("cpu_op", "Operator", "user_annotation")
_LAUNCH = ("cuda_runtime", "cuda_driver", "Runtime", "hip_runtime")
_PRODUCTS = ("aten::mm", "aten::addmm")
_BACKWARD = "autograd::engine::evaluate_function: "
_LARGEST = 1 << 53
_LOOKUPS = ("embedding_codegen_lookup", "embedding_bag")

COLLECTIVE = "Collective name"
"""The argument by which a trace names a collective; others beside it say what it moved."""

Thread = tuple[str, str]  # process and thread


class Kernel(NamedTuple):
    """A kernel on the GPU: microseconds, its stream, its correlation and its other arguments; `event` numbers it."""

    event: int
    name: str
    start_us: float
    took_us: float
    stream: Any
    correlation: int | None
    args: Mapping[str, Any]


class CpuOp(NamedTuple):
    """An operator or annotation on the CPU: its thread, microseconds, and its arguments.

    `gpu_us` is how long the kernels ran that it launched; of matrix products only.
    """

    name: str
    thread: Thread
    start_us: float
    end_us: float
    args: Mapping[str, Any]
    gpu_us: float = 0.0


class _Launches:
    """Where kernels were launched: on which thread and when, by correlation; and what they took on the GPU."""

    def __init__(self) -> None:
        self.at: dict[int, tuple[Thread, float]] = {}
        self.took_us: dict[int, float] = {}

    def with_gpu_time(self, ops: Iterable[CpuOp]) -> list[CpuOp]:
        """The operators with the microseconds of the kernels that they launched."""
        threads: dict[Thread, list[tuple[float, int]]] = defaultdict(list)
        for correlation, (thread, at_us) in self.at.items():
            if correlation in self.took_us:
                threads[thread].append((at_us, correlation))
        for launched in threads.values():
            launched.sort(key=lambda one: one[0])
        return [op._replace(gpu_us=self._within(op, threads.get(op.thread, []))) for op in ops]

    def _within(self, op: CpuOp, launched: Sequence[tuple[float, int]]) -> float:
        first = bisect_left(launched, op.start_us, key=lambda one: one[0])
        last = bisect_right(launched, op.end_us, key=lambda one: one[0])
        return sum(self.took_us[correlation] for _, correlation in launched[first:last])


@dataclass(slots=True)
class RawTrace:
    """What a trace holds that an import can use; `about` has everything beside its events.

    `launched`: thread and time at which a kernel of a collective was launched, by correlation.
    """

    source: SourceFile
    about: dict[str, Any] = field(default_factory=dict)
    collectives: list[Kernel] = field(default_factory=list)
    annotations: list[CpuOp] = field(default_factory=list)
    products: list[CpuOp] = field(default_factory=list)
    backward: list[CpuOp] = field(default_factory=list)
    launched: dict[int, tuple[Thread, float]] = field(default_factory=dict)
    lookups: int = 0
    events: int = 0

    @property
    def distributed(self) -> Mapping[str, Any]:
        """What the trace says of the run's ranks; empty if it says nothing."""
        said = self.about.get("distributedInfo")
        return said if isinstance(said, dict) else {}

    def number(self, name: str) -> int | None:
        """A whole number of `distributed`, such as rank; None if it is not there."""
        return whole(self.distributed.get(name))

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the GPUs that the rank saw."""
        listed = self.about.get("deviceProperties")
        named = (each.get("name") for each in listed if isinstance(each, dict)) if isinstance(listed, list) else ()
        return tuple(dict.fromkeys(str(name) for name in named if name))


def read_trace(source: SourceFile, read: Callable[[int], object]) -> RawTrace:
    """Return what a trace holds; `read` is told how many bytes of the file were read, packed ones of a packed file.

    Raises InputError that names the first event that cannot be read.
    """
    trace, launches = RawTrace(source), _Launches()
    with opened(source.path) as (content, file):
        place = 0

        def count(_: int) -> None:
            nonlocal place
            read(file.tell() - place)
            place = file.tell()

        for key, value in trace_entries(content, count):
            if key == EVENTS:
                _add(trace, launches, value)
                trace.events += 1
            else:
                trace.about[key] = value
    if not trace.events:
        raise InputError(f"has no {EVENTS}: give a trace that torch.profiler exported")
    wanted = {kernel.correlation for kernel in trace.collectives}
    trace.launched = {correlation: at for correlation, at in launches.at.items() if correlation in wanted}
    trace.products = launches.with_gpu_time(trace.products)
    return trace


def _add(trace: RawTrace, launches: _Launches, event: Mapping[str, Any]) -> None:
    category, name = event.get("cat"), event.get("name")
    if event.get("ph") != "X" or not isinstance(name, str):
        return
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    if category in _KERNEL:
        _add_kernel(trace, launches, event, name, args)
    elif category in _LAUNCH and (correlation := whole(args.get("correlation"))) is not None:
        at_us, _ = _times(trace, event)
        launches.at[correlation] = _thread(event), at_us
    elif category in _OPERATOR:
        for wanted in _wanted(trace, name, args):
            start_us, took_us = _times(trace, event)
            wanted.append(CpuOp(name, _thread(event), start_us, start_us + took_us, args))
        trace.lookups += any(part in name for part in _LOOKUPS)


def _add_kernel(
    trace: RawTrace, launches: _Launches, event: Mapping[str, Any], name: str, args: Mapping[str, Any]
) -> None:
    start_us, took_us = _times(trace, event)
    correlation = whole(args.get("correlation"))
    if correlation is not None:
        launches.took_us[correlation] = launches.took_us.get(correlation, 0.0) + took_us
    if "nccl" in name.lower():
        trace.collectives.append(Kernel(trace.events, name, start_us, took_us, event.get("tid"), correlation, args))


def _wanted(trace: RawTrace, name: str, args: Mapping[str, Any]) -> Iterator[list[CpuOp]]:
    """Where an operator of this name is kept."""
    if name.startswith("nccl:") or (name == "record_param_comms" and COLLECTIVE in args):
        yield trace.annotations
    elif name in _PRODUCTS:
        yield trace.products
    elif name.startswith(_BACKWARD):
        yield trace.backward


def whole(value: object) -> int | None:
    """Return a value of a trace if it is a whole number from 0 on that a float can hold, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else None


def _thread(event: Mapping[str, Any]) -> Thread:
    return _one_thread(str(event.get("pid")), str(event.get("tid")))


@lru_cache(maxsize=1024)
def _one_thread(process: str, thread: str) -> Thread:
    """The same object for the same thread: millions of launches hold it."""
    return process, thread


def _times(trace: RawTrace, event: Mapping[str, Any]) -> tuple[float, float]:
    """Start and duration of an event in microseconds."""
    found = []
    for key in ("ts", "dur"):
        value = event.get(key, 0)
        number = value if isinstance(value, float) else whole(value)
        if number is None or not 0 <= number <= _LARGEST:
            name = str(event.get("name"))[:40]
            raise InputError(f"event {trace.events} ({name!r}): {key} = {str(value)[:40]!r}, expected microseconds")
        found.append(float(number))
    return found[0], found[1]
