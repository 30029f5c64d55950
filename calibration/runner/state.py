"""What a batch carries from operation to operation, and what an operation hands to torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foreshard.calibration.ops.device_ops import Bags, RowGradients
from foreshard.calibration.runner.batches import Prepared, RoutePlan
from foreshard.calibration.runner.blocks import Hop
from foreshard.kernels.reference_codecs import Codec
from foreshard.simulator.job.program import CollectiveKind

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["BatchState", "FamilyState", "Flow", "Issue"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Issue:
    """A collective that is ready: `start` hands it to torch.distributed and returns its Work.

    `sent` and `received` [members] are an all_to_all's bytes to and from each member of the group, this rank included;
    `nbytes` is the size of any other kind as the program counts it (see `simulator.job.program.Collective`). `finish`
    is called once the collective has been waited for.
    """

    kind: CollectiveKind
    start: Callable[[], dist.Work]
    sent: FloatArray | None = None
    received: FloatArray | None = None
    nbytes: float = 0.0
    finish: Callable[[], None] | None = None

    @property
    def moves(self) -> bool:
        """Whether there is anything to move; all members of a group agree on it."""
        return self.sent is not None or self.nbytes > 0

    def bytes_to_others(self, position: int) -> float | None:
        """An all_to_all's bytes to other ranks; None for the other kinds, whose bytes the program has."""
        return None if self.sent is None else float(self.sent.sum() - self.sent[position])

    def bytes_from_others(self, position: int) -> float | None:
        """An all_to_all's bytes from other ranks."""
        return None if self.received is None else float(self.received.sum() - self.received[position])


@dataclass(slots=True, kw_only=True, eq=False)
class Flow:
    """Vectors or gradients on their way: the flat `buffer`, encoded as `held` (None: float32), and the exchanges."""

    buffer: torch.Tensor
    hops: tuple[Hop, ...]
    held: Codec | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class FamilyState:
    """One family's part of a batch on one rank, as batch owner and as row owner.

    Batch owner: `values` are the ids that `plan.index` picks from, `places` of deduplicated ids those among distinct
    ones, `rows` and `weights` what is sent. Row owner: `ids_from` [members] ids that come from each,
    `received_lengths`, `received_rows` and `received_weights`, the `bags` of them, and `row_gradients` for replicas.
    `hops` bring the vectors, `flow` is what is exchanged now; `distinct` are whole vectors of ids, `leaves` the tensors
    in which the dense model finds vectors and leaves their gradients.
    """

    plan: RoutePlan
    values: torch.Tensor | None = None
    places: Bags | None = None
    rows: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    ids_from: tuple[int, ...] = ()
    received_lengths: torch.Tensor | None = None
    received_rows: torch.Tensor | None = None
    received_weights: torch.Tensor | None = None
    bags: Bags | None = None
    hops: tuple[Hop, ...] = ()
    flow: Flow | None = None
    distinct: tuple[torch.Tensor, ...] = ()
    leaves: tuple[torch.Tensor, ...] = ()
    row_gradients: tuple[RowGradients, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class BatchState:
    """One batch on this rank's device: what `Prepared` holds in host memory, and the state of every family.

    `replicated` are the bags of data_parallel tables, pooled
    and sequences, with the leaves of their vectors.
    """

    prepared: Prepared
    values: torch.Tensor
    lengths: torch.Tensor
    weights: torch.Tensor | None
    dense: torch.Tensor
    labels: torch.Tensor
    families: dict[str, FamilyState]
    replicated: dict[bool, Bags] = field(default_factory=dict)
    replicated_leaves: dict[bool, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    loss: torch.Tensor | None = None
