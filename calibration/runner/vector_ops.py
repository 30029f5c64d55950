"""The way of vectors: looked up at the row owners, exchanged, put in order and pooled at the batch owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreshard.calibration.ops.device_ops import DeviceOps, Tables
from foreshard.calibration.runner.blocks import (
    Block,
    Hop,
    codec_of,
    decode_blocks,
    encode_blocks,
    wire_elements,
)
from foreshard.calibration.runner.collectives import all_gather, all_to_all, reduce_scatter
from foreshard.calibration.runner.family import Family
from foreshard.calibration.runner.state import BatchState, FamilyState, Flow, Issue
from foreshard.simulator.job.workload import DataType

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["Exchange", "VectorOps", "by_lane", "flat_by_lane", "hop_by_id"]


class Exchange:
    """Encode, exchange hop by hop, decode: the same forward and backward."""

    def __init__(self, ops: DeviceOps, precision: DataType, *, backward: bool) -> None:
        self._ops = ops
        self._precision = precision
        self._backward = backward

    def encode(self, flow: Flow, number: int) -> None:
        """Put the buffer into the form in which hop `number` carries it."""
        hop = flow.hops[number]
        blocks = [block for part in hop.send for block in part]
        if flow.held is not None:
            flow.buffer = decode_blocks(self._ops, flow.buffer, blocks, flow.held)
        flow.held = codec_of(hop.kind, self._precision, backward=self._backward)
        if flow.held is not None:
            flow.buffer = encode_blocks(self._ops, flow.buffer, blocks, flow.held)

    def hop(self, flow: Flow, number: int, group: dist.ProcessGroup) -> Issue:
        """One exchange; the buffer becomes what is received."""
        hop, sent = flow.hops[number], flow.buffer
        receive = [wire_elements(part, flow.held) for part in hop.receive]
        flow.buffer = out = sent.new_empty(sum(receive))
        match hop.kind:
            case "all_to_all":
                send = [wire_elements(part, flow.held) for part in hop.send]
                return all_to_all(out, sent, receive, send, group)
            case "reduce_scatter":
                return reduce_scatter(out, sent, group)
            case _:
                return all_gather(out, sent, group)

    def decode(self, flow: Flow) -> None:
        """Put the buffer back into float32."""
        if flow.held is not None:
            blocks = [block for part in flow.hops[-1].receive for block in part]
            flow.buffer = decode_blocks(self._ops, flow.buffer, blocks, flow.held)
            flow.held = None


class VectorOps:
    """The operations between look-up and dense forward of one rank; `tables` are its shards by family."""

    def __init__(self, ops: DeviceOps, tables: dict[str, Tables | None]) -> None:
        self._ops = ops
        self._tables = tables

    def lookup(self, family: Family, batch: BatchState) -> None:
        """Vectors of what was asked for, peer by peer."""
        state, tables = batch.families[family.name], self._tables[family.name]
        if family.by_id:
            state.hops = (hop_by_id(family, state),)
            vectors = self._ops.sequence_lookup(tables, state.bags) if tables and state.bags else ()
            buffer = self._by_peer(vectors, state.hops[0])
        else:
            state.hops = family.pooled_hops
            pooled = self._ops.pooled_lookup(tables, state.bags) if tables and state.bags else None
            buffer = self._pooled(family, pooled).reshape(-1)
        state.flow = Flow(buffer=buffer, hops=state.hops)

    def _by_peer(self, vectors: tuple[torch.Tensor, ...], hop: Hop) -> torch.Tensor:
        import torch

        return flat_by_lane(vectors, hop.send) if vectors else torch.empty(0, device=self._ops.device)

    def _pooled(self, family: Family, pooled: torch.Tensor | None) -> torch.Tensor:
        """Pooled vectors [members x samples, columns] in the form that the first exchange wants."""
        import torch

        rows = family.members * family.samples
        if pooled is None:
            pooled = torch.zeros((rows, 0), device=self._ops.device)
        if family.two_level:
            nodes = family.members // family.local
            return pooled.view(nodes, family.local, family.samples, pooled.shape[1]).transpose(0, 1)
        if family.summed and len(family.mine) < len(family.slots):
            return _spread(pooled, family)
        return pooled

    def join(self, family: Family, batch: BatchState) -> None:
        """What came back, in the order of slots: pooled vectors side by side, or vectors of ids in batch order."""
        state = batch.families[family.name]
        assert state.flow is not None
        if family.by_id:
            slots = _restored(self._ops, state)
            state.distinct = _side_by_side(family, slots)
            if not family.dedup:
                state.leaves = _leaves(state.distinct)
        else:
            joined = self._ops.join(state.flow.buffer, family.samples, family.joined_widths, family.join_order)
            state.leaves = _leaves((self._mean(family, state, joined),))
        state.flow = None

    def pool(self, family: Family, batch: BatchState) -> None:
        """Deduplicated ids: pool distinct vectors, or give every id of a sequence its own."""
        state = batch.families[family.name]
        assert state.places is not None
        feature_tables = [place for place, _ in family.features]
        if family.pooled:
            pooled = self._ops.from_distinct(state.distinct, feature_tables, state.places)
            state.leaves = _leaves((self._mean(family, state, pooled),))
        else:
            state.leaves = _leaves(self._ops.expand(state.distinct, feature_tables, state.places))

    def _mean(self, family: Family, state: FamilyState, vectors: torch.Tensor) -> torch.Tensor:
        if state.plan.divisors is None:
            return vectors
        return self._ops.mean(vectors, state.plan.divisors, [piece.width for piece in family.pieces])


def _leaves(vectors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(vector.detach().requires_grad_() for vector in vectors)


def _spread(pooled: torch.Tensor, family: Family) -> torch.Tensor:
    """The columns of this owner's slots among those of all, zeros where it holds no row."""
    import torch

    parts = dict(zip(family.mine, pooled.split(list(family.widths_at(family.position)), dim=1), strict=True))
    empty = [pooled.new_zeros((len(pooled), width)) for width in family.all_widths]
    return torch.cat([parts.get(slot, empty[slot]) for slot in range(len(family.slots))], dim=1)


def hop_by_id(family: Family, state: FamilyState) -> Hop:
    """The exchange of vectors id by id: to each peer those of its ids in my lanes, from each those of mine in its."""
    assert state.received_lengths is not None
    widths = family.widths_at(family.position)
    asked = state.received_lengths.view(family.members, len(widths), family.samples).sum(dim=2).tolist()
    send = tuple(tuple(Block(ids, (width,)) for ids, width in zip(own, widths, strict=True)) for own in asked)
    receive: list[list[Block]] = [[] for _ in range(family.members)]
    for owner, ids, width in zip(state.plan.lane_owners, state.plan.replies, state.plan.reply_widths, strict=True):
        receive[owner].append(Block(ids, (width,)))
    return Hop("all_to_all", send, tuple(map(tuple, receive)))


def flat_by_lane(vectors: tuple[torch.Tensor, ...], parts: tuple[tuple[Block, ...], ...]) -> torch.Tensor:
    """Vectors of every lane, [ids of all peers, width] each, as a flat buffer peer by peer."""
    import torch

    split = [lane.split([part[place].rows for part in parts]) for place, lane in enumerate(vectors)]
    return torch.cat([own[peer].reshape(-1) for peer in range(len(parts)) for own in split])


def by_lane(flat: torch.Tensor, parts: tuple[tuple[Block, ...], ...]) -> tuple[torch.Tensor, ...]:
    """The inverse of `flat_by_lane`."""
    import torch

    if not parts[0]:
        return ()
    pieces = iter(flat.split([block.rows * block.widths[0] for part in parts for block in part]))
    lanes: list[list[torch.Tensor]] = [[] for _ in parts[0]]
    for part in parts:
        for place, block in enumerate(part):
            lanes[place].append(next(pieces).view(block.rows, block.widths[0]))
    return tuple(torch.cat(lane) for lane in lanes)


def _restored(ops: DeviceOps, state: FamilyState) -> list[torch.Tensor]:
    """The vectors of every slot, [ids, width], in the order of the batch."""
    import torch

    assert state.flow is not None
    plan, flat = state.plan, state.flow.buffer
    lanes = flat.split([ids * width for ids, width in zip(plan.replies, plan.reply_widths, strict=True)])
    slots: dict[int, torch.Tensor] = {}
    for one in plan.classes:
        own = flat if len(plan.classes) == 1 else torch.cat([lanes[lane] for lane in one.lanes])
        ordered = ops.permute(own.view(-1, one.width), one.order)
        slots.update(zip(one.slots, ordered.split(list(one.sizes)), strict=True))
    return [slots[slot] for slot in range(len(slots))]


def _side_by_side(family: Family, slots: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Whole vectors of every feature, or of every table's distinct ids, from those of its column parts."""
    import torch

    whole, at = [], 0
    for one in family.tables:
        features = 1 if family.dedup else len(one.table.features)
        for feature in range(features):
            parts = [slots[at + column * features + feature] for column in range(one.col_parts)]
            whole.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
        at += features * one.col_parts
    return tuple(whole)
