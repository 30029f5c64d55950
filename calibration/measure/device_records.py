"""What ranks measured of their own work: one record for every operation of every job and rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from foreshard.calibration.measure.machine import Bench
from foreshard.simulator.job.program import Collective, Compute, StepProgram
from foreshard.simulator.job.work import WorkKind
from foreshard.topologies.errors import InputError
from foreshard.topologies.output import replaced

__all__ = ["DeviceFile", "DeviceSettings", "WorkRecord", "of_cores", "records_of"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkRecord:
    """Seconds of an operation on one rank, step by step, and the works it consists of with what each is counted in.

    `job` numbers the drawn job that it is part of.
    """

    job: int
    op: str
    works: tuple[tuple[WorkKind, Mapping[str, float]], ...]
    times_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSettings(Bench):
    """What all records of a file have in common, with how the jobs were drawn."""

    optimizer: str
    seed: int


class DeviceFile:
    """Records of finished jobs, a line each behind a line of settings; an interrupted last line is dropped."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def begin(self, settings: DeviceSettings) -> set[int]:
        """Return the jobs that an earlier run with the same settings finished. Raises InputError for other settings."""
        if not self.path.exists():
            self.path.write_bytes(msgspec.json.encode(settings) + b"\n")
            return set()
        before, records = self.read()
        if before != settings:
            raise InputError("was begun on another machine or with other options: remove it", where=str(self.path))
        lines = [msgspec.json.encode(settings), *(msgspec.json.encode(job) for job in _by_job(records))]
        with replaced(self.path) as part:
            part.write_bytes(b"".join(line + b"\n" for line in lines))
        return {record.job for record in records}

    def add(self, records: Sequence[WorkRecord]) -> None:
        """Append the records of one job."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(records) + b"\n")

    def read(self) -> tuple[DeviceSettings, list[WorkRecord]]:
        """Return the settings and the records of all whole lines. Raises InputError if it is no such file."""
        try:
            first, *rest = self.path.read_bytes().splitlines()
            settings = msgspec.json.decode(first, type=DeviceSettings)
        except (OSError, ValueError, msgspec.MsgspecError):
            raise InputError("is not a file of measured work: remove it", where=str(self.path)) from None
        return settings, [record for line in rest for record in _whole(line)]


def _whole(line: bytes) -> Iterator[WorkRecord]:
    try:
        yield from msgspec.json.decode(line, type=list[WorkRecord])
    except msgspec.MsgspecError:
        return


def _by_job(records: Sequence[WorkRecord]) -> Iterator[list[WorkRecord]]:
    for job in sorted({record.job for record in records}):
        yield [record for record in records if record.job == job]


def records_of(
    job: int, program: StepProgram, rank: int, took_s: FloatArray, host_s: FloatArray
) -> Iterator[WorkRecord]:
    """Yield the records of a rank's steps: `took_s` of compute operations, `host_s` to issue collectives, [steps, ops].

    Operations in which the rank has no work, or that took no part in the steps, are left out.
    """
    for index, op in enumerate(program.ops):
        times = host_s[:, index] if isinstance(op.work, Collective) else took_s[:, index]
        works = _works(op.work, rank)
        if works and np.isfinite(times).all() and (times > 0).all():
            yield WorkRecord(job=job, op=op.name, works=works, times_s=tuple(times.tolist()))


def of_cores(host_s: FloatArray, cpu_s: FloatArray) -> FloatArray:
    """Return how long a CPU rank takes to compute or issue operations while all ranks share the cores, [steps, ops].

    A thread that loses its core to another rank loses it in whole slices, in some operation or other: what each took
    by the clock is chance. So it is the time that the thread had a core, times what all operations together took by
    the clock over the time that they had a core.
    """
    return np.asarray(cpu_s * (np.nansum(host_s) / np.nansum(cpu_s)))


def _works(work: Compute | Collective, rank: int) -> tuple[tuple[WorkKind, Mapping[str, float]], ...]:
    if isinstance(work, Collective):
        return (("issue", {"calls": 1.0}),)
    counted = ((one.kind, {name: float(count[rank]) for name, count in one.counts.items()}) for one in work.works)
    return tuple((kind, counts) for kind, counts in counted if counts["calls"])
