"""The collectives of one rank's trace: what each moved, over which ranks, and how long its kernel ran."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foreshard.calibration.imports.kineto import COLLECTIVE, CpuOp, Kernel, RawTrace, whole
from foreshard.simulator.job.program import CollectiveKind

__all__ = ["TracedCollective", "traced_collectives"]

# As ProcessGroupNCCL names them (pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp), in a kernel's arguments
# and after "nccl:" in annotations; reduce, gather, scatter, send and recv are no part of a profile.
_KINDS: Mapping[str, CollectiveKind] = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "_allgather_base": "all_gather",
    "_all_gather_base": "all_gather",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
}
# Bytes by the type's name in arguments of kernels (c10::ScalarType) and in operators' "Input type".
_BYTES = {
    "float": 4, "half": 2, "c10::half": 2, "bfloat16": 2, "c10::bfloat16": 2, "double": 8, "int": 4, "long": 8,
    "long int": 8, "byte": 1, "unsigned char": 1, "char": 1, "signed char": 1, "short": 2, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_NESTED = 8  # operators that may lie around one launch, and more than record_param_comms and nccl:... do
_SPLITS = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedCollective:
    """One collective on one rank: `nbytes` as nccl-tests counts it, microseconds that its kernel ran.

    `group` names its process group, "" where the trace does not; `number` is the group's own count of it, if told.
    """

    kind: CollectiveKind
    nbytes: int
    took_us: float
    start_us: float
    group: str = ""
    number: int | None = None


def traced_collectives(trace: RawTrace, world_size: int, skipped: Counter[str]) -> list[TracedCollective]:
    """Return the collectives of a trace over all `world_size` ranks whose size it tells, in order of their start.

    All others are counted in `skipped` by the reason.
    """
    around = _Annotations(trace)
    found = []
    for kernel in sorted(trace.collectives, key=lambda kernel: kernel.start_us):
        described = _by_arguments(kernel.args) if COLLECTIVE in kernel.args else around.of(kernel)
        reason, collective = _collective(kernel, described, world_size)
        if collective is None:
            skipped[reason] += 1
        else:
            found.append(collective)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Described:
    """What a trace says of a collective; elements None where it does not say."""

    name: str
    data_type: str
    inputs: int | None
    outputs: int | None = None
    group_size: int | None = None
    group: str = ""
    number: int | None = None
    uneven: str = ""


def _collective(kernel: Kernel, said: _Described | None, world_size: int) -> tuple[str, TracedCollective | None]:
    """The collective, or why it is skipped."""
    if said is None:
        return "no operator or argument tells what the kernel moved", None
    kind = _KINDS.get(said.name)
    if kind is None:
        return f"{said.name} is no part of a profile", None
    if said.group_size is not None and said.group_size != world_size:
        return f"{kind} of {said.group_size} of {world_size} ranks: how many such groups ran at once is not told", None
    if kind == "all_to_all" and said.uneven:
        return f"all_to_all {said.uneven}", None
    elements = _elements(kind, said, world_size)
    width = _BYTES.get(said.data_type.lower())
    if elements is None or width is None:
        return f"{kind} of {said.data_type or 'an untold type'}: its size is not told", None
    if elements == 0 or kernel.took_us <= 0:
        return f"{kind} of no bytes, or in no time", None
    return "", TracedCollective(
        kind=kind, nbytes=elements * width, took_us=kernel.took_us, start_us=kernel.start_us, group=said.group,
        number=said.number,
    )  # fmt: skip


def _elements(kind: CollectiveKind, said: _Described, world_size: int) -> int | None:
    """Elements as nccl-tests counts them: of an all_gather what every rank ends with, else what it begins with."""
    if said.inputs is None:
        return None
    if kind != "all_gather":
        return said.inputs
    whole = said.inputs * world_size
    return whole if said.outputs is None or said.outputs == whole else None


def _by_arguments(args: Mapping[str, Any]) -> _Described:
    return _Described(
        name=str(args[COLLECTIVE]),
        data_type=str(args.get("dtype", "")),
        inputs=whole(args.get("In msg nelems")),
        outputs=whole(args.get("Out msg nelems")),
        group_size=whole(args.get("Group size")),
        group=str(args.get("Process Group Name", "")),
        number=whole(args.get("Seq")),
        uneven=_uneven(args),
    )


def _uneven(args: Mapping[str, Any]) -> str:
    """Why an all_to_all is not one of equal parts, as a curve is; "" if it is."""
    if args.get("In msg nelems") != args.get("Out msg nelems"):
        return "whose ranks send more than they receive, or less: curves are of equal parts"
    splits = {split for key in ("In split size", "Out split size") for split in _SPLITS.findall(str(args.get(key, "")))}
    return "with unequal parts: curves are of equal ones" if len(splits) > 1 else ""


class _Annotations:
    """What the CPU did around the launches of collectives, by thread and time."""

    def __init__(self, trace: RawTrace) -> None:
        self._launched = trace.launched
        self._threads: dict[Any, list[CpuOp]] = {}
        for op in sorted(trace.annotations, key=lambda op: op.start_us):
            self._threads.setdefault(op.thread, []).append(op)

    def of(self, kernel: Kernel) -> _Described | None:
        """What operators around a kernel's launch say: their arguments, if any has them, else an annotation."""
        launch = None if kernel.correlation is None else self._launched.get(kernel.correlation)
        if launch is None:
            return None
        thread, at_us = launch
        ops = self._threads.get(thread, [])
        place = bisect_right(ops, at_us, key=lambda op: op.start_us)
        around = [op for op in ops[max(0, place - _NESTED) : place] if at_us <= op.end_us]
        for op in around:
            if COLLECTIVE in op.args:
                return _by_arguments(op.args)
        return _annotated(around[-1]) if around else None


def _annotated(op: CpuOp) -> _Described:
    """What an annotation says: it has the sizes of its inputs, but not of their parts."""
    dims, types = op.args.get("Input Dims"), op.args.get("Input type")
    sizes = [_product(each) for each in dims] if isinstance(dims, list) else []
    inputs = sum(size for size in sizes if size is not None) if sizes and None not in sizes else None
    return _Described(
        name=op.name.removeprefix("nccl:"),
        data_type=str(types[0]) if isinstance(types, list) and types else "",
        inputs=inputs,
        uneven="whose parts are not told: they may be unequal, and curves are of equal ones",
    )


def _product(dims: Any) -> int | None:
    if not isinstance(dims, Sequence) or isinstance(dims, str):
        return None
    total = 1
    for dim in dims:
        if whole(dim) is None:
            return None
        total *= dim
    return total
