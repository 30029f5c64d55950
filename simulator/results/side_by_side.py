"""A measured and a predicted step as timelines: each on its own, and both in one file, span by span.

    DIR/measured/rank0000.pt.trace.json     the measured step of a rank
    DIR/predicted/rank0000.pt.trace.json    the predicted one
    DIR/together/rank0000.pt.trace.json     both: the predicted tracks of the rank below the measured ones

Both steps begin at the same time stamp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foreshard.simulator.job.program import StepProgram
from foreshard.simulator.job.trace import StepTrace
from foreshard.simulator.results.export import selected_ranks
from foreshard.simulator.results.timeline import Event, RankView, TimelineSource, events_of, header_of, to_json
from foreshard.simulator.results.trace_files import SYNC_FOLDER, check_trace_folder, remove_stale, trace_name
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.output import make_folder, replaced

__all__ = ["ComparedStep", "check_trace_folders", "write_side_by_side"]

_FOLDERS = ("measured", "predicted", "together")
_ALL_UP_TO = 16  # ranks, as of a prediction alone
_PREDICTED_PID = 4_000_000  # added to the process numbers of the predicted tracks, beyond those of the measured ones


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ComparedStep:
    """A measured step and, where there is one, the predicted one of the same operations, with what tells about them.

    `name` says which step it is where several kinds take turns.
    """

    measured: StepTrace
    predicted: StepTrace | None
    program: StepProgram
    cluster: Cluster
    name: str = ""


def check_trace_folders(folder: Path) -> None:
    """Return if timelines can be written below `folder`. Raises InputError as `check_trace_folder` does."""
    for name in _FOLDERS:
        check_trace_folder(folder / name)


def write_side_by_side(step: ComparedStep, folder: Path, *, sync_step: ComparedStep | None = None) -> tuple[Path, ...]:
    """Return the timelines written: all of up to 16 ranks, of a larger world those of `selected_ranks`.

    Those of `sync_step`, where replicas average now and then, go to the folder sync_step in each. Timelines that
    foreshard wrote there before give way. Raises InputError where the folder cannot be written.
    """
    check_trace_folders(folder)
    world = step.measured.world_size
    chosen = selected_ranks(step.measured) if world > _ALL_UP_TO else dict.fromkeys(range(world), "all are written")
    written = [*_written(step, folder, "", chosen)]
    if sync_step is not None:
        written += _written(sync_step, folder, SYNC_FOLDER, chosen)
    for name in _FOLDERS:
        remove_stale(folder / name, written)
    return tuple(written)


def _written(step: ComparedStep, folder: Path, below: str, ranks: Mapping[int, str]) -> Iterator[Path]:
    """Write one kind of step into each folder."""
    measured = TimelineSource(step.measured, step.program, step.cluster, step.name)
    sources = [(measured, "measured", 0)]
    if step.predicted is not None:
        predicted = TimelineSource(step.predicted, step.program, step.cluster, step.name)
        measured.origin_ns = predicted.origin_ns = min(measured.origin_ns, predicted.origin_ns)
        sources.append((predicted, "predicted", _PREDICTED_PID))
    for rank, why in ranks.items():
        tracks = [(RankView(source, rank, why), word, shift) for source, word, shift in sources]
        for view, word, _ in tracks:
            yield _write(folder / word / below, view, header_of(view), events_of(view))
        if len(tracks) > 1:
            events = (event for order, track in enumerate(tracks) for event in _told_apart(*track, order))
            yield _write(folder / "together" / below, tracks[0][0], header_of(tracks[0][0]), events)


def _write(folder: Path, view: RankView, fields: Event, events: Iterator[Event]) -> Path:
    make_folder(folder)
    path = folder / trace_name(view.rank, view.trace.world_size)
    with replaced(path) as part:
        part.write_bytes(to_json(fields, events))
    return path


def _told_apart(view: RankView, word: str, shift: int, order: int) -> Iterator[Event]:
    """A rank's events on processes of their own, named and sorted so that equal tracks lie one below the other."""
    for event in events_of(view):
        moved = {**event, "pid": _whole(event["pid"]) + shift}
        args = event.get("args")
        if event["ph"] == "M" and isinstance(args, dict):
            if event["name"] == "process_name":
                moved["args"] = {"name": f"{args['name']}, {word}"}
            elif event["name"] == "process_sort_index":
                moved["args"] = {"sort_index": 2 * _whole(args["sort_index"]) + order}
        yield moved


def _whole(value: object) -> int:
    assert isinstance(value, int | np.integer)
    return int(value)
