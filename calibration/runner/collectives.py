"""Collectives of torch.distributed on flat tensors, with the bytes that they move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from foreshard.calibration.runner.state import Issue
from foreshard.simulator.job.program import CollectiveKind

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["all_gather", "all_reduce", "all_to_all", "in_turn", "reduce_scatter"]


def all_to_all(
    out: torch.Tensor, sent: torch.Tensor, receive: Sequence[int], send: Sequence[int], group: dist.ProcessGroup
) -> Issue:
    """Flat elements, `send` [members] of them to each member and `receive` [members] from each."""
    import torch.distributed as dist

    size = sent.element_size()
    return Issue(
        kind="all_to_all",
        start=lambda: dist.all_to_all_single(out, sent, list(receive), list(send), group=group, async_op=True),
        sent=np.array(send, dtype=np.float64) * size,
        received=np.array(receive, dtype=np.float64) * size,
    )


def reduce_scatter(out: torch.Tensor, given: torch.Tensor, group: dist.ProcessGroup, *, mean: bool = False) -> Issue:
    """Sums (or means) of what all members give, [members x elements], each keeps its part."""
    import torch.distributed as dist

    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # renamed in torch 2.13
    operation = dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM
    return Issue(
        kind="reduce_scatter",
        start=lambda: scatter(out, given, op=operation, group=group, async_op=True),
        nbytes=float(given.numel() * given.element_size()),
    )


def all_gather(out: torch.Tensor, given: torch.Tensor, group: dist.ProcessGroup) -> Issue:
    """The parts of all members one after the other, [members x elements]."""
    import torch.distributed as dist

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
    return Issue(
        kind="all_gather",
        start=lambda: gather(out, given, group=group, async_op=True),
        nbytes=float(out.numel() * out.element_size()),
    )


def all_reduce(
    buffers: Sequence[torch.Tensor], group: dist.ProcessGroup, *, mean: bool, finish: Callable[[], None] | None = None
) -> Issue:
    """Sums (or means) over all members in place; buffers of several types follow each other as one collective."""
    import torch.distributed as dist

    operation = dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM

    def reduced(buffer: torch.Tensor) -> Callable[[], dist.Work]:
        return lambda: dist.all_reduce(buffer, op=operation, group=group, async_op=True)

    nbytes = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
    return in_turn("all_reduce", [reduced(buffer) for buffer in buffers], float(nbytes), finish=finish)


def in_turn(
    kind: CollectiveKind,
    starts: Sequence[Callable[[], dist.Work]],
    nbytes: float,
    *,
    finish: Callable[[], None] | None = None,
) -> Issue:
    """Collectives on one group, one after the other, as one that ends with the last.

    All are waited for: gloo's reduce_scatter writes its result only then.
    """
    works: list[dist.Work] = []

    def start() -> dist.Work:
        works.extend(one() for one in starts)
        return works.pop()

    def finished() -> None:
        for work in works:
            work.wait()
        if finish is not None:
            finish()

    return Issue(kind=kind, start=start, nbytes=nbytes, finish=finished)
