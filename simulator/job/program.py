"""The SPMD step program: operations with dependencies on streams, one object for all ranks.

Both interpreters, the simulator's engine and the real runner, walk the same list. The list is in *host issue
order*: the order in which the training loop launches the operations of one steady-state step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.job.work import Work
from foreshard.topologies.cluster import HostRoute

__all__ = [
    "STAGES",
    "AllToAll",
    "Collective",
    "CollectiveKind",
    "Compute",
    "Dep",
    "HostCopy",
    "Op",
    "Stage",
    "StepProgram",
    "Stream",
]

Stage = Literal[
    "batch_input",
    "lookup_routing",
    "vector_return",
    "local_compute",
    "sparse_gradient_return",
    "dense_gradient_sync",
    "optimizer_update",
]
STAGES: tuple[Stage, ...] = (
    "batch_input",
    "lookup_routing",
    "vector_return",
    "local_compute",
    "sparse_gradient_return",
    "dense_gradient_sync",
    "optimizer_update",
)
Stream = Literal["compute", "data_dist", "comm", "dense_comm", "replica_comm", "copy"]
CollectiveKind = Literal["all_to_all", "all_reduce", "reduce_scatter", "all_gather", "broadcast"]
AllToAll = Literal["pairwise", "hierarchical"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HostCopy:
    """`nbytes` [ranks] that go between each rank's GPU and its nearest host memory, in no less than `floor_s`.

    Free where a machine has no path to host memory.
    """

    nbytes: NDArray[np.float64]
    direction: HostRoute = "to_device"
    floor_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Compute:
    """Work of one rank on its own device: `seconds` [ranks], and the `works` of single kinds that it consists of.

    Before it `copies` go over the host's links, one after the other; they share links with whatever else is in flight,
    so their time is not in `seconds`.
    """

    seconds: NDArray[np.float64]
    works: tuple[Work, ...] = ()
    copies: tuple[HostCopy, ...] = ()


_MIRROR: dict[CollectiveKind, CollectiveKind] = {
    "all_to_all": "all_to_all",
    "reduce_scatter": "all_gather",
    "all_gather": "reduce_scatter",
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Collective:
    """A collective over each of `groups` at once, in bytes (or, before a data type is chosen, in elements).

    all_to_all carries `traffic`, one PairBytes a group or a single one that holds for all groups. The other kinds
    carry `nbytes`, again one a group or a single one: the size as nccl-tests counts it, of all_reduce and broadcast
    the buffer of a rank, of all_gather the whole gathered buffer, of reduce_scatter the whole buffer that each rank
    contributes.

    `steps` says how an all_to_all is carried out: as plain grouped send/recv, or in two steps, inside the nodes to the
    rank of the destination's local position and then between ranks of equal local position.
    """

    kind: CollectiveKind
    groups: Groups
    traffic: tuple[PairBytes, ...] = ()
    nbytes: tuple[float, ...] = ()
    steps: AllToAll = "pairwise"

    def traffic_of(self, group: int) -> PairBytes:
        """The traffic of one group of an all_to_all."""
        return self.traffic[0] if len(self.traffic) == 1 else self.traffic[group]

    def nbytes_of(self, group: int) -> float:
        """The size of one group of any other kind."""
        return self.nbytes[0] if len(self.nbytes) == 1 else self.nbytes[group]

    def scaled(self, factor: float) -> Collective:
        """The same collective with every size times `factor` (bytes per element, say)."""
        traffic = tuple(pairs.scaled(factor) for pairs in self.traffic)
        return replace(self, traffic=traffic, nbytes=tuple(size * factor for size in self.nbytes))

    def mirrored(self) -> Collective:
        """What the backward of this collective is: traffic transposed, reduce_scatter and all_gather exchanged."""
        return replace(self, kind=_MIRROR[self.kind], traffic=tuple(pairs.transposed() for pairs in self.traffic))


@dataclass(frozen=True, slots=True)
class Dep:
    """A dependency on the operation `op` of the step `steps_back` steps earlier (0: of this step)."""

    op: str
    steps_back: int = 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Op:
    """One operation of every rank.

    `name` is unique in the program; `label` is the span's name in TorchRec's and the profiler's words. `batch` is
    the batch it works on, counted from the batch whose forward runs in this step. The host needs `host_s` to issue
    its `launches` kernels, one after the other; before that it waits until all of `host_waits` are finished.
    """

    name: str
    label: str
    stage: Stage
    stream: Stream
    work: Compute | Collective
    deps: tuple[Dep, ...] = ()
    batch: int = 0
    launches: int = 1
    host_s: float = 0.0
    host_waits: tuple[Dep, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepProgram:
    """The operations of one steady-state step in host issue order; `warmup_steps` fill the pipeline first."""

    world_size: int
    ops: tuple[Op, ...]
    warmup_steps: int
