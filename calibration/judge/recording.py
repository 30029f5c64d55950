"""The collectives of a step as a program issues them: kind, elements, data type and group, recorded and simulated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from foreshard.simulator.job.program import Collective, CollectiveKind, StepProgram
from foreshard.simulator.step.costs import INDEX_BYTES, LENGTH_BYTES

__all__ = ["Issued", "python_all_reduce", "recorded", "simulated"]

# Function of torch.distributed: the collective it is, and the places of its output and its input.
_FUNCTIONS: dict[str, tuple[CollectiveKind, int, int]] = {
    "all_to_all_single": ("all_to_all", 0, 1),
    "reduce_scatter_tensor": ("reduce_scatter", 0, 1),
    "reduce_scatter_single": ("reduce_scatter", 0, 1),
    "all_gather_into_tensor": ("all_gather", 0, 1),
    "all_gather_single": ("all_gather", 0, 1),
    "all_reduce": ("all_reduce", 0, 0),
}


class Issued(NamedTuple):
    """One collective that a rank issued: elements it gave and got, their type, and the ranks that took part."""

    kind: CollectiveKind
    given: int
    got: int
    data_type: str
    group: tuple[int, ...]


@contextmanager
def recorded(calls: list[Issued]) -> Iterator[None]:
    """Append every collective that is issued through `torch.distributed` meanwhile, in order."""
    kept = {name: getattr(dist, name) for name in _FUNCTIONS if hasattr(dist, name)}
    depth = [0]  # a function may call another one of the list
    for name, function in kept.items():
        setattr(dist, name, _recording(function, *_FUNCTIONS[name], calls, depth))
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)


def _recording(
    function: Callable[..., Any], kind: CollectiveKind, out: int, given: int, calls: list[Issued], depth: list[int]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not depth[0]:
            tensors = [*args, *(value for value in kwargs.values() if isinstance(value, torch.Tensor))]
            calls.append(_issued(kind, tensors[given], tensors[out], kwargs.get("group")))
        depth[0] += 1
        try:
            return function(*args, **kwargs)
        finally:
            depth[0] -= 1

    return wrapper


def _issued(kind: CollectiveKind, given: torch.Tensor, got: torch.Tensor, group: dist.ProcessGroup | None) -> Issued:
    ranks = tuple(sorted(dist.get_process_group_ranks(group or dist.group.WORLD)))
    return Issued(kind, given.numel(), got.numel(), str(given.dtype).removeprefix("torch."), ranks)


def python_all_reduce() -> Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]:
    """A communication hook with which DistributedDataParallel does what it does anyway, through `torch.distributed`."""

    def hook(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return allreduce_hook(group, bucket)

    hook.__annotations__.clear()  # DDP compares annotations with its classes, and these are text
    return hook


def simulated(program: StepProgram, rank: int) -> list[Issued]:
    """The collectives of a step program as one rank issues them, in host order; groups of one rank move nothing."""
    return [
        issued
        for op in program.ops
        if isinstance(op.work, Collective)
        for issued in [_of_program(op.name, op.work, rank)]
        if len(issued.group) > 1
    ]


def _of_program(name: str, work: Collective, rank: int) -> Issued:
    group = int(work.groups.group_of[rank])
    members = work.groups.members[group].tolist()
    size, data_type = _element(name)
    if work.kind == "all_to_all":
        pairs, position = work.traffic_of(group), members.index(rank)
        given, got = pairs.row(position).sum() / size, pairs.transposed().row(position).sum() / size
    else:
        whole, part = work.nbytes_of(group) / size, work.nbytes_of(group) / size / len(members)
        given = part if work.kind == "all_gather" else whole
        got = part if work.kind == "reduce_scatter" else whole
    return Issued(work.kind, round(float(given)), round(float(got)), data_type, tuple(sorted(members)))


def _element(name: str) -> tuple[int, str]:
    """Bytes and type of an operation's elements."""
    if name.startswith("input_dist.lengths"):
        return LENGTH_BYTES, "int32"
    if name.startswith("input_dist"):
        return INDEX_BYTES, "int64"
    return 4, "float32"
