"""input_dist: ids made distinct, put into sending order, exchanged with their lengths, and put into table order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from foreshard.calibration.ops.device_ops import DeviceOps
from foreshard.calibration.runner.collectives import all_to_all
from foreshard.calibration.runner.family import Family
from foreshard.calibration.runner.state import BatchState, FamilyState, Issue

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["IdOps", "feature_bags"]

_SPLITS = 3  # lanes, lengths and ids that go to a peer; weights, where there are any, are as many as ids


class IdOps:
    """The operations of `input_dist` of one rank."""

    def __init__(self, ops: DeviceOps) -> None:
        self._ops = ops

    def dedup(self, family: Family, batch: BatchState) -> None:
        """Distinct ids of every table, and the place of each id among them."""
        import torch

        state = batch.families[family.name]
        pieces = [batch.values[span] for span in state.plan.features.spans]
        distinct, places, at = [], [], 0
        for one in family.tables:
            ids = torch.cat(pieces[at : at + len(one.table.features)])
            own, place = self._ops.deduplicate(ids, num_embeddings=one.table.num_embeddings)
            distinct.append(own)
            places.append(place)
            at += len(one.table.features)
        state.values = torch.cat(distinct)
        lengths = batch.lengths.index_select(0, state.plan.features.rows)
        state.places = self._ops.bags(torch.cat(places), lengths, _feature_weights(batch, state))

    def permute(self, family: Family, batch: BatchState) -> None:
        """Ids in sending order, as local rows of their owners."""
        state = batch.families[family.name]
        plan, values = state.plan, batch.values if state.values is None else state.values
        state.rows = self._ops.permute(values, plan.index)
        if plan.shift is not None:
            state.rows.sub_(plan.shift)
        if batch.weights is not None and not family.by_id:
            state.weights = self._ops.permute(batch.weights, plan.index)

    def splits(self, families: Sequence[Family], batch: BatchState, group: dist.ProcessGroup) -> Issue:
        """How many lanes, lengths and ids go to each peer, [members, families, 3]."""
        import torch

        rows = [row for family in families for row in _splits_of(family, batch)]
        sent = torch.tensor(rows, dtype=torch.int64).T.contiguous().to(self._ops.device)
        received = torch.empty_like(sent)
        each = [len(rows)] * families[0].members
        issue = all_to_all(received.view(-1), sent.view(-1), each, each, group)
        return replace(issue, finish=lambda: self._read_splits(families, received, batch))

    def _read_splits(self, families: Sequence[Family], received: torch.Tensor, batch: BatchState) -> None:
        """Learn how many ids come from each peer. Waits for the device."""
        columns, at = received.T.tolist(), 0
        for family in families:
            splits = len(_splits_of(family, batch))
            batch.families[family.name].ids_from = tuple(columns[at + _SPLITS - 1])
            at += splits

    def lengths(self, family: Family, batch: BatchState, group: dist.ProcessGroup) -> Issue:
        """Ids of every sample, lane by lane, to the lane's owner."""
        import torch

        state = batch.families[family.name]
        receive = [len(family.mine) * family.samples] * family.members
        state.received_lengths = torch.empty(sum(receive), dtype=torch.int32, device=self._ops.device)
        send = [lanes * family.samples for lanes in family.lanes_sent]
        return all_to_all(state.received_lengths, state.plan.lengths.view(-1), receive, send, group)

    def values(self, family: Family, batch: BatchState, group: dist.ProcessGroup) -> Issue:
        """The ids, as rows of their owners."""
        import torch

        state = batch.families[family.name]
        assert state.rows is not None
        state.received_rows = torch.empty(sum(state.ids_from), dtype=torch.int64, device=self._ops.device)
        return all_to_all(state.received_rows, state.rows, state.ids_from, state.plan.ids_to, group)

    def weights(self, family: Family, batch: BatchState, group: dist.ProcessGroup) -> Issue:
        """The weights of weighted pooling, one an id."""
        import torch

        state = batch.families[family.name]
        assert state.weights is not None
        state.received_weights = torch.empty(sum(state.ids_from), dtype=torch.float32, device=self._ops.device)
        return all_to_all(state.received_weights, state.weights, state.ids_from, state.plan.ids_to, group)

    def recat(self, family: Family, batch: BatchState) -> None:
        """What came, in table order: bags of every lane, peer by peer and sample by sample."""
        state = batch.families[family.name]
        assert state.received_lengths is not None
        assert state.received_rows is not None
        if not family.mine:
            return
        lengths = state.received_lengths.view(family.members, len(family.mine), family.samples)
        state.bags = self._ops.recat(state.received_rows, lengths, state.received_weights)


def _splits_of(family: Family, batch: BatchState) -> list[Sequence[int]]:
    """Lanes, lengths, ids and, if any, weights that go to each peer, [tensors][members]."""
    ids = batch.families[family.name].plan.ids_to
    splits: list[Sequence[int]] = [family.lanes_sent, [lanes * family.samples for lanes in family.lanes_sent], ids]
    return [*splits, ids] if batch.weights is not None and not family.by_id else splits


def _feature_weights(batch: BatchState, state: FamilyState) -> torch.Tensor | None:
    import torch

    if batch.weights is None:
        return None
    return torch.cat([batch.weights[span] for span in state.plan.features.spans])


def feature_bags(ops: DeviceOps, batch: BatchState, pooled: bool) -> None:
    """The bags of the data_parallel tables' features in the rank's own batch."""
    import torch

    features = batch.prepared.replicated[pooled]
    ids = torch.cat([batch.values[span] for span in features.spans])
    weights = None if batch.weights is None else torch.cat([batch.weights[span] for span in features.spans])
    batch.replicated[pooled] = ops.bags(ids, batch.lengths.index_select(0, features.rows), weights)
