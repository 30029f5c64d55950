"""Routing on the device: owners of ids, the stable permutation that groups ids by owner, distinct ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreshard.kernels.checks import Problems, id_suffix
from foreshard.kernels.cupy_device import cupy_device
from foreshard.kernels.device import MAX_GRID, SHARED_BYTES, WARP, Device, blocks_for
from foreshard.kernels.segments import segment_keys
from foreshard.topologies.errors import InputError

__all__ = ["ROUTE", "Bucketised", "FeatureRoute", "bucketise", "deduplicate", "find_owners"]

ROUTE = np.dtype([("bounds", "i8"), ("members", "i8"), ("parts", "i4"), ("hashed", "i4")])  # struct Route, routing.cu

_TILE = 2048  # ids that one warp sorts: 64 turns, against one counter a member that it clears and stores
_COUNTER = 8  # bytes
_IDS = ("int64", "int32")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FeatureRoute:
    """Who owns the rows of one feature's table: `members[p]` owns part p.

    Part p of a range holds rows `bounds[p]` to `bounds[p + 1]` - 1; without bounds ids are hashed over the parts.
    """

    members: Sequence[int]
    bounds: Sequence[int] | None = None

    def problems(self, feature: int) -> Iterator[str]:
        """What is wrong with the route of a feature."""
        if not len(self.members):
            yield f"feature {feature} has no owner: expected at least one"
        elif min(self.members) < 0:
            yield f"feature {feature} has owner {min(self.members)}: expected none below 0"
        if self.bounds is not None:
            bounds, wanted = [*map(int, self.bounds)], len(self.members) + 1
            if len(bounds) != wanted or any(low > high for low, high in pairwise(bounds)):
                yield f"bounds of feature {feature} are {bounds}: expected {wanted} rising"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bucketised:
    """`ids[permutation]` groups ids by owner and keeps their order; `inverse` undoes it; `counts` int64 [members]."""

    permutation: Any
    inverse: Any
    counts: Any


def find_owners(
    routes: Sequence[FeatureRoute], ids: object, starts: object, *, checked: bool = False, device: Device | None = None
) -> tuple[Any, Any]:
    """Return (owner int32, row int64) of every id; feature f owns `ids[starts[f] : starts[f + 1]]`, in one launch.

    The row counts from the start of the owner's range; of a hashed table it is the id. Raises InputError for wrong
    input. The hash is the simulator's, bit for bit. `checked` reads starts and ids first and raises InputError where
    one is out of range; else such an id goes to the nearest part, as a row that it does not have.
    """
    device = device or cupy_device()
    with device.on(ids, starts):
        taken, spans = device.take(ids, "ids"), device.take(starts, "starts")
        _check(routes, taken, spans)
        if checked:
            _check_values(routes, taken, spans)
        described, bounds, members = (device.upload(part) for part in _describe(routes))
        count = int(taken.size)
        owners, rows = device.xp.empty(count, dtype=np.int32), device.xp.empty(count, dtype=np.int64)
        if count:
            spans = spans.astype(np.int64, copy=False)
            args = (described, spans, np.int32(len(routes)), bounds, members, taken, np.int64(count), owners, rows)
            kernel = f"find_owners_{id_suffix(taken)}"
            device.launch(kernel, blocks_for(device, count), args, threads=device.threads)
        return device.give(owners, ids), device.give(rows, ids)


def _check(routes: Sequence[FeatureRoute], ids: Any, starts: Any) -> None:
    problems = Problems("routing")
    for array, what in ((ids, "ids"), (starts, "starts")):
        problems.dtype(array, what, _IDS)
        problems.shape(array, what, "[n]", array.ndim == 1)
    problems.shape(starts, "starts", f"[{len(routes)} features + 1]", starts.size == len(routes) + 1)
    problems.unless(len(routes) > 0 or not ids.size, f"{ids.size} ids of no feature: expected a route")
    for feature, route in enumerate(routes):
        problems.found += route.problems(feature)
    problems.raise_any()


def _check_values(routes: Sequence[FeatureRoute], ids: Any, starts: Any) -> None:
    """Starts must rise from 0 to the number of ids, and ids lie in their ranges; waits for the device."""
    ends = [int(start) for start in starts.tolist()]
    if ends[0] != 0 or ends[-1] != ids.size or sorted(ends) != ends:
        raise InputError(f"starts are {ends}: expected rising from 0 to {ids.size}, the number of ids", where="routing")
    problems = Problems("routing")
    for feature, (route, begin, end) in enumerate(zip(routes, ends, ends[1:], strict=False)):
        if route.bounds is not None:
            problems.within(
                ids[begin:end], f"ids of feature {feature}", int(route.bounds[0]), int(route.bounds[-1]) - 1
            )
    problems.raise_any()


def _describe(routes: Sequence[FeatureRoute]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int32]]:
    """Return (descriptors [features], all bounds one after the other, all members one after the other)."""
    described = np.zeros(len(routes), dtype=ROUTE)
    bounds: list[int] = []
    members: list[int] = []
    for index, route in enumerate(routes):
        described[index] = (len(bounds), len(members), len(route.members), route.bounds is None)
        bounds.extend(() if route.bounds is None else route.bounds)
        members.extend(route.members)
    return described, np.array(bounds or [0], dtype=np.int64), np.array(members, dtype=np.int32)


def bucketise(owners: object, members: int, *, checked: bool = False, device: Device | None = None) -> Bucketised:
    """The stable permutation that groups ids by owner (int32 [ids], 0 to `members` - 1), its inverse and the counts.

    A counting sort: warps count tiles, a running sum places every (member, tile), warps place their ids. Raises
    InputError for another dtype or shape. `checked` reads the owners first and raises InputError where one is out of
    range; else such an owner counts in foreign memory.
    """
    device = device or cupy_device()
    with device.on(owners):
        taken = device.take(owners, "owners")
        problems = Problems("bucketise")
        problems.dtype(taken, "owners", ("int32",))
        problems.shape(taken, "owners", "[n]", taken.ndim == 1)
        problems.unless(members > 0, f"{members} members: expected at least one")
        problems.raise_any()
        if checked:
            problems.within(taken, "owners", 0, members - 1)
            problems.raise_any()
        return _counting_sort(device, taken, members, owners)


def _counting_sort(device: Device, owners: Any, members: int, like: object) -> Bucketised:
    xp, count = device.xp, int(owners.size)
    tiles = max(1, -(-count // _TILE))
    counts = xp.empty((members, tiles), dtype=np.int64)
    warps = min(device.threads // WARP, SHARED_BYTES // (members * _COUNTER))
    threads, shared = (warps or 1) * WARP, warps * members * _COUNTER
    grid = min(-(-tiles * WARP // threads), MAX_GRID)
    sizes = (owners, np.int64(count), np.int64(members), np.int64(_TILE), np.int64(tiles), np.int32(warps > 0))
    device.launch("count_tiles", grid, (*sizes, counts), threads=threads, shared_bytes=shared)
    ends = xp.cumsum(counts.reshape(-1), dtype=np.int64)
    starts = ends - counts.reshape(-1)
    permutation, inverse = xp.empty(count, dtype=np.int64), xp.empty(count, dtype=np.int64)
    device.launch("place_tiles", grid, (*sizes, starts, permutation, inverse), threads=threads, shared_bytes=shared)
    totals = counts.sum(axis=1)
    permutation, inverse, totals = (device.give(array, like) for array in (permutation, inverse, totals))
    return Bucketised(permutation=permutation, inverse=inverse, counts=totals)


def deduplicate(
    ids: object, *, limit: int | None = None, checked: bool = False, device: Device | None = None
) -> tuple[Any, Any]:
    """Return (distinct ids, ascending; the place of every id among them, int64), both of `ids` int64 [n].

    A `limit` promises ids from 0 to `limit` - 1, such as num_embeddings, and lets them be sorted faster. Waits for the
    device once, for the number of distinct ids. Raises InputError for another dtype or shape. `checked` reads the ids
    first and raises InputError where one breaks the promise; else distinct ids may be taken for one.
    """
    device = device or cupy_device()
    with device.on(ids):
        taken = device.take(ids, "ids")
        problems = Problems("deduplicate")
        problems.dtype(taken, "ids", ("int64",))
        problems.shape(taken, "ids", "[n]", taken.ndim == 1)
        problems.raise_any()
        if checked and limit is not None:
            problems.within(taken, "ids", 0, limit - 1)
            problems.raise_any()
        if not taken.size:
            return device.give(taken[:0], ids), device.give(taken[:0], ids)
        segments = segment_keys(device, taken, limit=limit, inverse=True)
        return device.give(segments.distinct[: int(segments.count[0])], ids), device.give(segments.inverse, ids)
