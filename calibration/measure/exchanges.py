"""One collective of torch.distributed after the other, on buffers of a size: what is timed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foreshard.calibration.measure.link_plan import ELEMENT_BYTES
from foreshard.calibration.runner.collectives import all_gather, reduce_scatter
from foreshard.simulator.job.program import CollectiveKind

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["Start", "all_to_all", "collective", "ping_pong"]

Start = Callable[[], "dist.Work"]


def collective(kind: CollectiveKind, group: dist.ProcessGroup, nbytes: int, device: torch.device) -> Start:
    """Return what starts a collective of nccl-tests' size `nbytes` on buffers of fp32; parts are equal.

    What comes in goes to new memory each time, as in a step.
    """
    import torch.distributed as dist

    members = dist.get_world_size(group)
    whole, part = _ones(nbytes, device), _ones(nbytes // members, device)
    match kind:
        case "all_reduce":
            return lambda: _work(dist.all_reduce(whole, group=group, async_op=True))
        case "reduce_scatter":
            return lambda: reduce_scatter(_new(part), whole, group).start()
        case "all_gather":
            return lambda: all_gather(_new(whole), part, group).start()
        case "broadcast":
            root = dist.get_global_rank(group, 0)
            return lambda: _work(dist.broadcast(whole, src=root, group=group, async_op=True))
        case "all_to_all":
            return all_to_all(group, np.full((members, members), nbytes // members // ELEMENT_BYTES), device)


def all_to_all(group: dist.ProcessGroup, splits: NDArray[np.int64], device: torch.device) -> Start:
    """Return what starts an all_to_all of `splits` elements from each member to each, [members, members].

    Equal parts are told as well, as TorchRec does: without them gloo runs other code.
    """
    import torch.distributed as dist

    own = dist.get_rank(group)
    out, into = splits[own].tolist(), splits[:, own].tolist()
    sent, like = _ones(sum(out) * ELEMENT_BYTES, device), _ones(sum(into) * ELEMENT_BYTES, device)
    return lambda: _work(dist.all_to_all_single(_new(like), sent, into, out, group=group, async_op=True))


def ping_pong(rank: int, ranks: tuple[int, int], nbytes: int, device: torch.device) -> Callable[[], None]:
    """Return what sends `nbytes` from the first of `ranks` to the second and back; nothing on other ranks."""
    import torch.distributed as dist

    if rank not in ranks:
        return lambda: None
    buffer = _ones(nbytes, device)
    other = ranks[1 - ranks.index(rank)]

    def first() -> None:
        dist.send(buffer, other)
        dist.recv(buffer, other)

    def second() -> None:
        dist.recv(buffer, other)
        dist.send(buffer, other)

    return first if rank == ranks[0] else second


def _new(like: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty_like(like)


def _ones(nbytes: int, device: torch.device) -> torch.Tensor:
    """Written memory: pages that were never written would all be one page of zeros."""
    import torch

    return torch.ones(nbytes // ELEMENT_BYTES, dtype=torch.float32, device=device)


def _work(work: dist.Work | None) -> dist.Work:
    assert work is not None  # async_op gives one to every member
    return work
