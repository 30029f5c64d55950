"""Collectives of torch.distributed on flat tensors, with the bytes that they move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from foreshard.calibration.runner.state import Issue

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"]


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

    def start() -> dist.Work:
        works = [dist.all_reduce(buffer, op=operation, group=group, async_op=True) for buffer in buffers]
        return works[-1]  # a group's collectives end in order

    return Issue(
        kind="all_reduce",
        start=start,
        nbytes=float(sum(buffer.numel() * buffer.element_size() for buffer in buffers)),
        finish=finish,
    )
