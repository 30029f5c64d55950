"""Batches of one rank, drawn or recorded, with everything about their routing worked out before the steps begin.

Who owns which id, in which order ids leave, and how what returns is put back come from `foreshard.simulator`; a step
then moves ids and vectors by these permutations. They lie on the device before the first step, as a data loader that
routes ahead would have them, and no copy of a step is made longer by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foreshard.calibration.runner import initial
from foreshard.calibration.runner.family import Family
from foreshard.calibration.runner.settings import RunSettings
from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.lookups.dedup import deduplicate
from foreshard.simulator.lookups.recorded import RecordedBatches
from foreshard.simulator.lookups.routing import Route, lanes_of, lengths_sent, restore_order, route, values_sent
from foreshard.simulator.lookups.sampling import SampledBatches
from foreshard.simulator.step.prediction import Prediction

if TYPE_CHECKING:
    import torch

__all__ = ["Features", "Loader", "Prepared", "RoutePlan", "WidthClass", "rank_batch"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WidthClass:
    """Replies of one width, which are put in order together.

    `lanes` are the lanes that have it, in the order of receiving; `order` int64 puts their replies into slot order and
    `back` undoes it; `slots` are the slots that have it, `sizes` their replies.
    """

    width: int
    lanes: tuple[int, ...]
    order: torch.Tensor
    back: torch.Tensor
    slots: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Features:
    """Features of some tables in a batch: `spans` of the batch's ids, feature by feature, and rows of its lengths."""

    spans: tuple[slice, ...]
    rows: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RoutePlan:
    """How one family's ids of a batch leave this rank and how vectors come back.

    `index` int64 [requests] finds the id of each request in sending order, `shift` (None: 0) what is subtracted to make
    it the owner's local row. `lengths` int32 [lanes, samples] are sent owner by owner; `ids_to` [members] ids go to
    each owner. For exchanges by id: `replies` are the ids of each lane that return, in the order of receiving,
    `reply_widths` their columns, `lane_owners` their owners, `classes` how they are put in order. `divisors` int32
    [pieces, samples] are the numbers of ids that means are divided by, 1 for sums; None without means. `features` are
    those of the family, table by table.
    """

    index: torch.Tensor
    shift: torch.Tensor | None
    lengths: torch.Tensor
    ids_to: tuple[int, ...]
    replies: tuple[int, ...]
    reply_widths: tuple[int, ...]
    lane_owners: tuple[int, ...]
    classes: tuple[WidthClass, ...]
    divisors: torch.Tensor | None
    features: Features


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prepared:
    """One batch of this rank in host memory, routed.

    `values` int64 [ids], `lengths` int32 [features, samples], `weights` float32 [ids] or None, `dense` float32
    [samples, inputs], `labels` float32 [samples]; `plans` by family, `replicated` the features of data_parallel tables,
    pooled and sequences; `sequences` rows of `lengths` by (table, feature).
    """

    values: torch.Tensor
    lengths: torch.Tensor
    weights: torch.Tensor | None
    dense: torch.Tensor
    labels: torch.Tensor
    plans: dict[str, RoutePlan]
    replicated: dict[bool, Features]
    length_row: dict[str, int]


def rank_batch(prediction: Prediction, rank: int, step: int) -> JaggedBatch:
    """The ids that `rank` trains on in a step: drawn with the scenario's seed, or the recorded samples, in turn.

    Step 0 is the batch that the prediction counts. Recorded samples begin anew where they end.
    """
    workload, execution = prediction.scenario.workload, prediction.scenario.execution
    world = prediction.layout.world_size
    if execution.routing == "replayed":
        return RecordedBatches.of(workload, world).of_rank(step * world + rank)
    return SampledBatches(workload, world, execution.seed, step).of_rank(rank)


class Loader:
    """The batches of one rank, made once and used in turn."""

    def __init__(
        self, prediction: Prediction, families: Sequence[Family], settings: RunSettings, rank: int, device: torch.device
    ) -> None:
        self._prediction = prediction
        self._families = tuple(families)
        self._settings = settings
        self._rank = rank
        self._device = device
        self._made: dict[int, Prepared] = {}

    def prepare(self, steps: int, progress: Callable[[str], None]) -> None:
        """Draw and route all batches that so many steps need."""
        for number in range(min(steps, self._settings.batches)):
            if number not in self._made:
                progress(f"routing batch {number}")
                self._made[number] = self._make(number)

    def __getitem__(self, step: int) -> Prepared:
        return self._made[step % self._settings.batches]

    def _make(self, number: int) -> Prepared:
        import torch

        workload, seed, exact = self._prediction.scenario.workload, self._seed, self._settings.exact
        batch = rank_batch(self._prediction, self._rank, number)
        host, samples = torch.device("cpu"), batch.samples
        inputs = workload.dense.input_features
        row = {feature: place for place, feature in enumerate(batch.features)}
        return Prepared(
            values=self._pinned(torch.from_numpy(batch.values)),
            lengths=self._pinned(torch.from_numpy(batch.lengths.astype(np.int32))),
            weights=None if batch.weights is None else self._pinned(torch.from_numpy(batch.weights).float()),
            dense=self._pinned(initial.dense_inputs(seed, number, self._rank, samples, inputs, host, exact=exact)),
            labels=self._pinned(initial.labels(seed, number, self._rank, samples, host, exact=exact)),
            plans={family.name: _plan(family, batch, self._device) for family in self._families},
            replicated=dict(self._replicated(batch)),
            length_row=row,
        )

    @property
    def _seed(self) -> int:
        return self._prediction.scenario.execution.seed

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Page-locked where a GPU copies it, so that the copy runs beside everything else."""
        return tensor.pin_memory() if self._device.type == "cuda" else tensor

    def _replicated(self, batch: JaggedBatch):  # type: ignore[no-untyped-def]
        for pooled in (True, False):
            tables = [
                one for one in self._prediction.sharded
                if one.sharding == "data_parallel" and (one.table.pooling != "none") == pooled
            ]  # fmt: skip
            if tables:
                yield pooled, _features(tables, batch, self._device)


def _features(tables: Sequence[ShardedTable], batch: JaggedBatch, device: torch.device) -> Features:
    starts, places = batch.feature_starts, _places(tables, batch)
    return Features(
        spans=tuple(slice(int(starts[place]), int(starts[place + 1])) for place in places),
        rows=_on(device, np.array(places, dtype=np.int64)),
    )


def _places(tables: Sequence[ShardedTable], batch: JaggedBatch) -> list[int]:
    return [batch.features.index(feature) for one in tables for feature in one.table.features]


def _on(device: torch.device, values: NDArray[np.generic]) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def _plan(family: Family, batch: JaggedBatch, device: torch.device) -> RoutePlan:
    tables, routed = family.tables, batch
    if family.dedup:
        distinct = deduplicate(batch, family.tables)
        tables, routed = distinct.tables, distinct.batch
    one = route(routed, tables, family.members)
    index = values_sent(one)
    shift = routed.values[index] - one.rows
    lanes = lanes_of(one.slots, family.members)
    replies = one.counts[lanes.owner, lanes.slot]
    return RoutePlan(
        index=_on(device, index),
        shift=_on(device, shift) if shift.any() else None,
        lengths=_on(device, _distinct_lengths(family, one) if family.dedup else lengths_sent(one, batch)),
        ids_to=tuple(one.requests_by_owner.tolist()),
        replies=tuple(replies.tolist()),
        reply_widths=tuple(one.slots[slot].width for slot in lanes.slot.tolist()),
        lane_owners=tuple(lanes.owner.tolist()),
        classes=_classes(one, lanes.slot, replies, device) if family.by_id else (),
        divisors=_divisors(family, batch, device),
        features=_features(family.tables, batch, device),
    )


def _distinct_lengths(family: Family, one: Route) -> NDArray[np.int32]:
    """Distinct ids leave under as many lengths as before: all in a table's first feature and sample."""
    out = np.zeros((len(family.lanes.owner), family.samples), dtype=np.int32)
    first = {slot.table.table.name: slot.feature for slot in reversed(family.slots)}
    place = {(slot.table.table.name, slot.column): number for number, slot in enumerate(one.slots)}
    for lane, (owner, number) in enumerate(zip(family.lanes.owner, family.lanes.slot, strict=True)):
        slot = family.slots[number]
        if slot.feature == first[slot.table.table.name]:
            out[lane, 0] = one.counts[owner, place[slot.table.table.name, slot.column]]
    return out


def _divisors(family: Family, batch: JaggedBatch, device: torch.device) -> torch.Tensor | None:
    if not (family.pooled and family.has_means):
        return None
    mean = {number: one.table.pooling == "mean" for one, number in zip(family.tables, family.numbers, strict=True)}
    place = {feature: row for row, feature in enumerate(batch.features)}
    ones = np.ones(batch.samples, dtype=np.int64)
    rows = [batch.lengths[place[piece.feature]] if mean[piece.table] else ones for piece in family.pieces]
    return _on(device, np.stack(rows).astype(np.int32))


def _classes(one: Route, slot_of: IntArray, replies: IntArray, device: torch.device) -> tuple[WidthClass, ...]:
    """Replies grouped by width; within a class those of a slot lie together, in the order of the batch."""
    width = np.array([slot.width for slot in one.slots], dtype=np.int64)
    sizes = np.diff(one.slot_starts)
    at = restore_order(one)  # of each request in slot order, its place among all replies
    width_of_reply = np.repeat(width[slot_of], replies)
    classes = []
    for wanted in np.unique(width).tolist():
        place = np.cumsum(width_of_reply == wanted) - 1  # of each reply among those of the class
        order = place[at[np.repeat(width == wanted, sizes)]]
        slots = np.flatnonzero(width == wanted)
        classes.append(
            WidthClass(
                width=wanted,
                lanes=tuple(np.flatnonzero(width[slot_of] == wanted).tolist()),
                order=_on(device, order),
                back=_on(device, np.argsort(order)),
                slots=tuple(slots.tolist()),
                sizes=tuple(sizes[slots].tolist()),
            )
        )
    return tuple(classes)
