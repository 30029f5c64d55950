"""Collectives of all ranks' traces put together: how long each took from the last member's start on.

A kernel of NCCL runs from when its own rank came until all are done, so it holds the wait for those who came later. The
rank that came last did not wait: the shortest of all ranks' kernels is the collective's time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from foreshard.calibration.imports.kineto import RawTrace
from foreshard.calibration.imports.measured import Row
from foreshard.calibration.imports.places import SAID, Told, shape_of
from foreshard.calibration.imports.trace_collectives import TracedCollective, traced_collectives
from foreshard.topologies.errors import InputError

__all__ = ["TracedRows", "trace_rows"]

_Key = tuple[str, str, int, int]  # group, kind, bytes, count in the group


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedRows:
    """What traces give to a profile: the world's ranks by node, rows, whether all were traced, what was skipped."""

    ranks_per_node: tuple[int, ...]
    rows: tuple[Row, ...]
    whole: bool
    skipped: tuple[str, ...]


def _world(traces: Sequence[RawTrace], told: Told) -> int:
    """The ranks of the run that the traces are of; raises InputError if they are not of one run, or not told."""
    sizes = {trace.number("world_size") for trace in traces} - {None}
    problems = []
    if len(sizes) > 1:
        listed = "; ".join(f"{trace.source.name}: {trace.number('world_size')}" for trace in traces)
        problems.append(f"the traces are of worlds of different sizes ({listed}): import each run by itself")
    for trace in traces:
        backend = trace.distributed.get("backend", "nccl")
        if str(backend) != "nccl":
            problems.append(f"{trace.source.name}: ran on {str(backend)[:40]}, whose collectives are no GPU kernels")
    if problems:
        raise InputError(problems)
    size = next(iter(sizes), None) or told.ranks
    if size is None:
        raise InputError(
            f"{traces[0].source.name}: has no distributedInfo that tells the size of the world: give both --nodes and "
            "--ranks-per-node"
        )
    return size


def _twice(traces: Sequence[RawTrace]) -> list[str]:
    ranks = Counter(trace.number("rank") for trace in traces)
    unknown = ranks.pop(None, 0)
    problems = [f"{count} traces of rank {rank}: give one of every rank" for rank, count in ranks.items() if count > 1]
    if unknown and len(traces) > 1:
        problems.append(f"{unknown} traces do not tell their rank: give one of them alone, or those that do")
    return problems


def trace_rows(traces: Sequence[RawTrace], told: Told) -> TracedRows:
    """Return the rows of traces of one run, one for every collective over the whole world.

    Raises InputError if they are not of one run, or nothing tells how its ranks lie in nodes.
    """
    problems = _twice(traces)
    if problems:
        raise InputError(problems)
    if not any(trace.collectives for trace in traces):
        return TracedRows(ranks_per_node=(), rows=(), whole=False, skipped=("no trace has a kernel of NCCL",))
    world = _world(traces, told)
    skipped: Counter[str] = Counter()
    of_ranks = [traced_collectives(trace, world, skipped) for trace in traces]
    if not any(of_ranks):
        return TracedRows(ranks_per_node=(), rows=(), whole=False, skipped=_sentences(skipped))
    whole = len(traces) == world and {trace.number("rank") for trace in traces} == set(range(world))
    said = told.nodes is not None or (told.per_node is not None and told.per_node_of == SAID)
    try:
        shape = shape_of(world, _seen_shape(traces) if whole and not said else None, told)
    except InputError as error:
        raise InputError([f"{traces[0].source.name}: {problem}" for problem in error.problems]) from None
    rows = [
        Row(
            kind=first.kind,
            ranks_per_node=shape,
            nbytes=float(first.nbytes),
            time_s=min(one.took_us for one in instance) * 1e-6,
            where=f"{traces[0].source.name}, {first.kind} at {first.start_us:.0f} us",
        )
        for instance in _instances(of_ranks, skipped)
        for first in instance[:1]
    ]
    return TracedRows(ranks_per_node=shape, rows=tuple(rows), whole=whole, skipped=_sentences(skipped))


def _seen_shape(traces: Sequence[RawTrace]) -> tuple[int, ...] | None:
    """Ranks of each node, by the ordinals of their GPUs: of ranks with the same one each is in another node.

    None if they tell nothing: where all are alike, every rank may have been shown its own GPU only.
    """
    ordinals = [
        {device for kernel in trace.collectives if isinstance(device := kernel.args.get("device"), int)}
        for trace in traces
    ]
    if any(len(own) != 1 for own in ordinals):
        return None
    times = Counter(next(iter(own)) for own in ordinals)
    if len(times) == 1 < len(traces):
        return None
    return tuple(sum(1 for count in times.values() if count > node) for node in range(max(times.values())))


def _instances(of_ranks: Sequence[Sequence[TracedCollective]], skipped: Counter[str]) -> list[list[TracedCollective]]:
    """The same collective on every traced rank: by its number in the group, else by how often it came before."""
    by_key = [_keyed(collectives) for collectives in of_ranks]
    uneven = _counts_differ(by_key)
    shared = [key for key in by_key[0] if key[:3] not in uneven and all(key in keys for keys in by_key)]
    lonely = sum(len(keys) for keys in by_key) - len(shared) * len(by_key)
    if lonely:
        skipped["not in the traces of all ranks given, so which belong together is not known"] += lonely
    return [[keys[key] for keys in by_key] for key in shared]


def _keyed(collectives: Sequence[TracedCollective]) -> dict[_Key, TracedCollective]:
    seen: Counter[tuple[str, str, int]] = Counter()
    keyed: dict[_Key, TracedCollective] = {}
    for one in collectives:
        what = (one.group, one.kind, one.nbytes)
        number = seen[what] if one.number is None else -1 - one.number
        seen[what] += 1
        keyed[*what, number] = one
    return keyed


def _counts_differ(by_key: Sequence[dict[_Key, TracedCollective]]) -> set[tuple[str, str, int]]:
    """Collectives without a number of their own that some ranks have more often than others."""
    counts = [Counter(key[:3] for key in keys if key[3] >= 0) for keys in by_key]
    return {what for count in counts for what in count if any(other[what] != count[what] for other in counts)}


def _sentences(skipped: Counter[str]) -> tuple[str, ...]:
    return tuple(f"{count} skipped: {reason}" for reason, count in sorted(skipped.items()))
