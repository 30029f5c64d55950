"""Ids with torch on any device: owners, stable bucketising, distinct ids, segments, jagged bags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foreshard.calibration.ops.device_ops import Bags, Bucketised
from foreshard.kernels import FeatureRoute
from foreshard.kernels.reference_routing import FIRST_MULTIPLIER, GAMMA, SECOND_MULTIPLIER

__all__ = [
    "Segments",
    "bucketise",
    "deduplicate",
    "feature_starts",
    "find_owners",
    "jagged",
    "permute_segments",
    "recat",
    "segment",
    "starts_of",
]

_MARK_FACTOR = 8  # rows of a table per id up to which marking every row is faster than sorting (simulator's dedup.py)


def starts_of(counts: torch.Tensor) -> torch.Tensor:
    """Exclusive prefix sum of `counts` [n] with the total at the end, int64 [n + 1]."""
    starts = torch.zeros(counts.numel() + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=starts[1:])
    return starts


# -- owners -----------------------------------------------------------------------------------------------------------


def _signed(constant: int) -> int:
    """The int64 with the bits of an unsigned constant: torch multiplies int64 modulo 2^64."""
    return constant - (1 << 64) if constant >= 1 << 63 else constant


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """A shift to the right that brings in zeros."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _hash_part(ids: torch.Tensor, parts: int) -> torch.Tensor:
    """The part of every id: the upper 32 hash bits scaled to `parts`, bit for bit `reference_routing.hash_part`."""
    bits = ids + _signed(GAMMA)
    bits = (bits ^ _shifted(bits, 30)) * _signed(FIRST_MULTIPLIER)
    bits = (bits ^ _shifted(bits, 27)) * _signed(SECOND_MULTIPLIER)
    bits = bits ^ _shifted(bits, 31)
    return (_shifted(bits, 32) * parts) >> 32


def find_owners(
    routes: Sequence[FeatureRoute], ids: torch.Tensor, starts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`DeviceOps.find_owners`, feature by feature."""
    owners = torch.empty(ids.numel(), dtype=torch.int32, device=ids.device)
    rows = torch.empty(ids.numel(), dtype=torch.int64, device=ids.device)
    ends = starts.tolist()
    for route, begin, end in zip(routes, ends, ends[1:], strict=False):
        _locate(route, ids[begin:end].to(torch.int64), owners[begin:end], rows[begin:end])
    return owners, rows


def _locate(route: FeatureRoute, ids: torch.Tensor, owners: torch.Tensor, rows: torch.Tensor) -> None:
    members = torch.tensor(route.members, dtype=torch.int32, device=ids.device)
    if route.bounds is None:
        parts = _hash_part(ids, len(route.members))
        rows.copy_(ids)
    else:
        bounds = torch.tensor(route.bounds, dtype=torch.int64, device=ids.device)
        parts = torch.bucketize(ids, bounds[1:], right=True)
        torch.sub(ids, bounds[parts], out=rows)
    torch.index_select(members, 0, parts, out=owners)


def bucketise(owners: torch.Tensor, members: int) -> Bucketised:
    """`DeviceOps.bucketise`: a stable sort by owner."""
    permutation = torch.sort(owners, stable=True).indices
    inverse = torch.empty_like(permutation)
    inverse[permutation] = torch.arange(owners.numel(), device=owners.device)
    counts = torch.bincount(owners, minlength=members)
    return Bucketised(permutation=permutation, inverse=inverse, counts=counts)


# -- equal ids --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Segments:
    """Look-ups grouped by row: `order` [ids] sorts them stably, segment s is `order[starts[s] : starts[s + 1]]`.

    `rows` int64 [segments] are the distinct rows, rising; `starts` int64 [segments + 1].
    """

    order: torch.Tensor
    rows: torch.Tensor
    starts: torch.Tensor


def segment(ids: torch.Tensor, num_rows: int) -> Segments:
    """Group look-ups by row; within a row they keep their order. Ids below 2^31 are sorted as int32, twice as fast."""
    keys = ids.to(torch.int32) if num_rows <= 1 << 31 else ids
    ordered, order = torch.sort(keys, stable=True)
    first = torch.nonzero(_heads(ordered)).view(-1)
    rows = ordered.index_select(0, first).to(torch.int64)
    end = torch.full((1,), ids.numel(), dtype=torch.int64, device=ids.device)
    return Segments(order=order, rows=rows, starts=torch.cat([first, end]))


def _heads(ordered: torch.Tensor) -> torch.Tensor:
    """Where a value differs from the one before it, bool [values]; the first always does."""
    heads = torch.ones(ordered.numel(), dtype=torch.bool, device=ordered.device)
    torch.ne(ordered[1:], ordered[:-1], out=heads[1:])
    return heads


def deduplicate(ids: torch.Tensor, num_embeddings: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`DeviceOps.deduplicate`: rows of small tables are marked, ids of large ones sorted."""
    if num_embeddings <= _MARK_FACTOR * ids.numel():
        seen = torch.zeros(num_embeddings, dtype=torch.int64, device=ids.device)
        seen[ids] = 1
        return torch.nonzero(seen).view(-1), (torch.cumsum(seen, 0) - 1).index_select(0, ids)
    groups = segment(ids, num_embeddings)
    inverse = torch.empty_like(groups.order)
    inverse[groups.order] = torch.repeat_interleave(
        torch.arange(groups.rows.numel(), device=ids.device), groups.starts.diff(), output_size=ids.numel()
    )
    return groups.rows, inverse


# -- jagged data ------------------------------------------------------------------------------------------------------


def _segment_index(lengths: torch.Tensor, order: torch.Tensor, total: int) -> torch.Tensor:
    """The permutation that moves whole segments, int64 [total]; TorchRec's jagged permute."""
    begin = starts_of(lengths)[:-1].index_select(0, order)
    size = lengths.index_select(0, order).to(torch.int64)
    shift = begin - starts_of(size)[:-1]
    index = torch.repeat_interleave(shift, size, output_size=total)
    return index.add_(torch.arange(total, device=index.device))


def permute_segments(values: torch.Tensor, lengths: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """`DeviceOps.permute_segments`."""
    return values.index_select(0, _segment_index(lengths, order, values.shape[0]))


def jagged(ids: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None) -> Bags:
    """`DeviceOps.bags`."""
    return Bags(ids=ids, offsets=starts_of(lengths.reshape(-1)), features=lengths.shape[0], weights=weights)


def recat(ids: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None) -> Bags:
    """`DeviceOps.recat`."""
    sources, features, _ = lengths.shape
    order = torch.arange(sources * features, device=ids.device).view(sources, features).T.reshape(-1)
    index = _segment_index(lengths.sum(2).view(-1), order, ids.numel())
    moved = None if weights is None else weights.index_select(0, index)
    return jagged(ids.index_select(0, index), lengths.transpose(0, 1).reshape(features, -1), moved)


def feature_starts(bags: Bags) -> list[int]:
    """Where each feature's ids begin, and their number, on the host, [features + 1]. Waits for the device."""
    if not bags.batch:
        return [0] * (bags.features + 1)
    return [int(start) for start in bags.offsets[:: bags.batch].tolist()]
