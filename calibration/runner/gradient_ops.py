"""The way of gradients: from the dense model's leaves back to the row owners, and into their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foreshard.calibration.ops.device_ops import DeviceOps, Tables
from foreshard.calibration.ops.optimizers import EmbeddingOptimizer
from foreshard.calibration.runner.blocks import mirrored
from foreshard.calibration.runner.family import Family
from foreshard.calibration.runner.state import BatchState, FamilyState, Flow
from foreshard.calibration.runner.vector_ops import by_lane

if TYPE_CHECKING:
    import torch

__all__ = ["GradientOps"]


class GradientOps:
    """The operations between dense backward and updated rows of one rank; `tables` are its shards by family.

    Gradients of vectors are multiplied by `scale`: with a mean loss on every rank, 1 over the ranks whose batches step
    the rows together (TorchRec's gradient division).
    """

    def __init__(self, ops: DeviceOps, tables: dict[str, Tables | None], *, scale: float) -> None:
        self._ops = ops
        self._tables = tables
        self._scale = scale

    def collect(self, family: Family, batch: BatchState) -> None:
        """The gradients that the dense backward left, laid out for their way back."""
        state = batch.families[family.name]
        gradients = tuple(self._of(leaf) for leaf in state.leaves)
        if family.by_id:
            buffer = self._send_slots(state, _slot_columns(family, gradients))
        else:
            joined = self._mean(family, state, gradients[0])
            buffer = self._ops.split(joined, family.joined_widths, family.join_order).reshape(-1)
        self._start(state, buffer)

    def unpool(self, family: Family, batch: BatchState) -> None:
        """Deduplicated ids: the gradient of every distinct row, summed over the bags or ids that used it."""
        import torch

        state = batch.families[family.name]
        assert state.places is not None
        gradients = tuple(self._of(leaf) for leaf in state.leaves)
        targets = tuple(torch.zeros_like(vectors) for vectors in state.distinct)
        feature_tables = [place for place, _ in family.features]
        if family.pooled:
            self._ops.add_pooled(targets, feature_tables, self._mean(family, state, gradients[0]), state.places)
        else:
            self._ops.add_sequence(targets, feature_tables, gradients, state.places)
        self._start(state, self._send_slots(state, _slot_columns(family, targets)))

    def _of(self, leaf: torch.Tensor) -> torch.Tensor:
        """The scaled gradient of a leaf; zero where the model does not use it."""
        import torch

        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        return gradient if self._scale == 1.0 else gradient * self._scale

    def _mean(self, family: Family, state: FamilyState, gradients: torch.Tensor) -> torch.Tensor:
        if state.plan.divisors is None:
            return gradients
        return self._ops.mean(gradients, state.plan.divisors, [piece.width for piece in family.pieces])

    def _start(self, state: FamilyState, buffer: torch.Tensor) -> None:
        state.flow = Flow(buffer=buffer, hops=tuple(mirrored(hop) for hop in reversed(state.hops)))
        state.leaves = state.distinct = ()

    def _send_slots(self, state: FamilyState, slots: Sequence[torch.Tensor]) -> torch.Tensor:
        """Gradients of every slot [ids, width] as a flat buffer, lane by lane."""
        import torch

        plan, lanes = state.plan, {}
        for one in plan.classes:
            own = torch.cat([slots[slot] for slot in one.slots])
            sent = self._ops.permute(own, one.back)
            if len(plan.classes) == 1:
                return sent.reshape(-1)
            lanes.update(zip(one.lanes, sent.split([plan.replies[lane] for lane in one.lanes]), strict=True))
        return torch.cat([lanes[lane].reshape(-1) for lane in range(len(lanes))])

    # -- at the row owner --------------------------------------------------------------------------------------

    def update(self, family: Family, batch: BatchState, optimizer: EmbeddingOptimizer) -> None:
        """Step the rows by the gradients that came."""
        state, tables = batch.families[family.name], self._tables[family.name]
        if tables is None or state.bags is None or state.flow is None:
            return
        if family.by_id:
            self._ops.update_sequence(
                tables, optimizer, by_lane(state.flow.buffer, state.flow.hops[0].receive), state.bags
            )
        else:
            self._ops.update_pooled(tables, optimizer, _at_owner(family, state.flow.buffer), state.bags)
        state.flow = None

    def sum_rows(self, family: Family, batch: BatchState) -> None:
        """The summed gradient of every row that was touched, kept for the exchange with the replicas."""
        state, tables = batch.families[family.name], self._tables[family.name]
        if tables is None or state.bags is None or state.flow is None:
            return
        if family.by_id:
            gradients = by_lane(state.flow.buffer, state.flow.hops[0].receive)
            state.row_gradients = self._ops.sum_sequence(tables, gradients, state.bags)
        else:
            state.row_gradients = self._ops.sum_pooled(tables, _at_owner(family, state.flow.buffer), state.bags)
        state.flow = None


def _slot_columns(family: Family, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The columns of every slot, of whole gradients by feature, or by table where ids are deduplicated."""
    slots, at = [], 0
    for one in family.tables:
        features = 1 if family.dedup else len(one.table.features)
        for begin, end in zip(one.col_bounds[:-1].tolist(), one.col_bounds[1:].tolist(), strict=True):
            slots += [gradients[at + feature][:, begin:end] for feature in range(features)]
        at += features
    return slots


def _at_owner(family: Family, flat: torch.Tensor) -> torch.Tensor:
    """Gradients [members x samples, columns of my lanes], peer by peer."""
    import torch

    rows = family.members * family.samples
    if family.two_level:
        nodes, width = family.members // family.local, sum(family.widths_at(family.position))
        return flat.view(family.local, nodes, family.samples, width).transpose(0, 1).reshape(rows, width)
    if not family.summed or len(family.mine) == len(family.slots):
        return flat.view(rows, sum(family.widths_at(family.position)))
    parts = flat.view(rows, sum(family.all_widths)).split(list(family.all_widths), dim=1)
    return torch.cat([parts[slot] for slot in family.mine], dim=1)
