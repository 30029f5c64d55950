"""Writing the timelines of a step: which ranks of which steps, into a folder where older timelines give way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from foreshard.simulator.job.program import StepProgram
from foreshard.simulator.job.trace import StepTrace
from foreshard.simulator.results.exposure import slowest_rank
from foreshard.simulator.results.timeline import RankView, TimelineSource, render
from foreshard.simulator.results.trace_files import SYNC_FOLDER, check_trace_folder, remove_stale, trace_name
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.output import make_folder, replaced

__all__ = [
    "WrittenTraces", "check_ranks", "selected_ranks", "step_names", "trace_bytes", "write_trace", "written_traces",
]  # fmt: skip

_ALL_UP_TO = 16  # ranks; of a larger world the telling ranks only, unless others are asked for


def write_trace(
    source: StepTrace | Prediction,
    directory: str | Path,
    *,
    ranks: Iterable[int] | Literal["all"] | None = None,
    program: StepProgram | None = None,
    cluster: Cluster | None = None,
) -> tuple[Path, ...]:
    """Return the files written to `directory`, one a rank, named rank0007.pt.trace.json.

    `ranks` None writes all of up to 16 ranks, and of a larger world those of `selected_ranks`. Timelines that foreshard
    wrote there before give way. A prediction brings `program` and `cluster` with it; where replicas do not synchronise
    in every step, the step in which they do is written too, into the folder sync_step below. With the `program` a
    collective names its own bytes and group, without it the bytes of the busiest rank; with the `cluster` too there are
    link tracks. Raises InputError for ranks outside the world or a directory that cannot be written.
    """
    return written_traces(source, directory, ranks=ranks, program=program, cluster=cluster).paths


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenTraces:
    """The timelines written: their `paths`, the ranks with the reason for each, how many older files gave way."""

    directory: Path
    paths: tuple[Path, ...]
    ranks: dict[int, str]
    world_size: int
    steps: tuple[str, ...]
    removed: int

    def sentence(self) -> str:
        """Which ranks of which steps were written where, and why those."""
        if len(self.ranks) == self.world_size:
            which = f"all {self.world_size} ranks"
        else:
            told = ", ".join(f"{rank} ({why})" for rank, why in list(self.ranks.items())[:8])
            more = f" and {len(self.ranks) - 8} more" if len(self.ranks) > 8 else ""
            which = f"{len(self.ranks)} of {self.world_size} ranks, {told}{more}"
        steps = "; ".join(filter(None, self.steps))
        gone = f"; {self.removed} timelines of an earlier run removed" if self.removed else ""
        return f"{self.directory}: timelines of {which}" + (f"; {steps}" if steps else "") + gone


def written_traces(
    source: StepTrace | Prediction,
    directory: str | Path,
    *,
    ranks: Iterable[int] | Literal["all"] | None = None,
    program: StepProgram | None = None,
    cluster: Cluster | None = None,
) -> WrittenTraces:
    """Write what `write_trace` writes and return what was written, with the reasons; raises as it does."""
    folder = Path(directory)
    trace = source.trace if isinstance(source, Prediction) else source
    chosen = _chosen(trace, ranks)
    check_trace_folder(folder)
    sources = (
        list(_sources(source)) if isinstance(source, Prediction) else [("", TimelineSource(trace, program, cluster))]
    )
    paths = []
    for below, files in sources:
        make_folder(folder / below)
        for rank, why in chosen.items():
            path = folder / below / trace_name(rank, trace.world_size)
            with replaced(path) as part:
                part.write_bytes(render(RankView(files, rank, why)))
            paths.append(path)
    return WrittenTraces(
        directory=folder,
        paths=tuple(paths),
        ranks=chosen,
        world_size=trace.world_size,
        steps=tuple(f"{below + ': ' if below else ''}{files.step}" for below, files in sources if files.step),
        removed=remove_stale(folder, paths),
    )


def _sources(source: Prediction) -> Iterator[tuple[str, TimelineSource]]:
    """The steps to write and the folder of each: one, or the two that take turns."""
    often, seldom = step_names(source)
    yield "", TimelineSource(source.trace, source.program(source.shown_sync), source.cluster, often)
    if seldom and source.sync is not None:
        yield SYNC_FOLDER, TimelineSource(source.sync.weights, source.program("weights"), source.cluster, seldom)


def step_names(source: Prediction) -> tuple[str, str]:
    """What the step of `source.trace` is and what the other one is, where replicas synchronise now and then."""
    interval = source.scenario.layout.sync_interval
    if source.sync is None or source.shown_sync is not None or interval == 1:
        return "", ""
    return (
        f"a step without replica synchronisation, {interval - 1} of {interval}",
        f"a step that averages replicas, 1 of {interval}",
    )


def trace_bytes(
    trace: StepTrace, rank: int, *, program: StepProgram | None = None, cluster: Cluster | None = None
) -> bytes:
    """The file of one rank, as `write_trace` writes it. Raises InputError for a rank outside the world."""
    _chosen(trace, [rank])
    return render(RankView(TimelineSource(trace, program, cluster), rank, "asked for"))


def selected_ranks(trace: StepTrace) -> dict[int, str]:
    """Up to five telling ranks, and why each is one, in order of rank.

    Work of its own is the time of a rank's operations without waiting for others.
    """
    waits = np.nansum(trace.wait_s, axis=0)
    own = np.nansum(trace.end_s - trace.start_s, axis=0) - waits
    chosen = {0: "first rank"}
    for rank, reason in (
        (slowest_rank(trace), "slowest: waits least for others"),
        (np.argmax(waits), "fastest: waits most for others"),
        (np.argmax(own), "most work of its own"),
        (np.argsort(own, kind="stable")[len(own) // 2], "median work of its own"),
    ):
        chosen[int(rank)] = f"{chosen[int(rank)]}; {reason}" if int(rank) in chosen else reason
    return dict(sorted(chosen.items()))


def _chosen(trace: StepTrace, ranks: Iterable[int] | Literal["all"] | None) -> dict[int, str]:
    """Ranks to write and why each."""
    world = trace.world_size
    if ranks == "all" or (ranks is None and world <= _ALL_UP_TO):
        return dict.fromkeys(range(world), "all ranks are written")
    if ranks is None or isinstance(ranks, str):
        return selected_ranks(trace)
    chosen = dict.fromkeys(ranks, "asked for")
    check_ranks(chosen, world)
    return chosen


def check_ranks(ranks: Iterable[int], world_size: int) -> None:
    """Return if the world has all these ranks; raises InputError with those it has not, or if there are none."""
    chosen = list(ranks)
    if wrong := [rank for rank in chosen if not 0 <= rank < world_size]:
        raise InputError(f"ranks {wrong} are not in the trace: it has ranks 0 to {world_size - 1}")
    if not chosen:
        raise InputError("no ranks are chosen: name some, or all")
