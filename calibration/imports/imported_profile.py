"""What logs and traces gave, as a profile with its provenance, and laid into a profile that is there already."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from foreshard.calibration.imports.kineto import RawTrace
from foreshard.calibration.imports.log_rows import ImportedLog
from foreshard.calibration.imports.measured import SAME_POINT_RULE, Row, curves_of
from foreshard.calibration.imports.source import SourceFile
from foreshard.calibration.imports.trace_products import TracedWork
from foreshard.calibration.imports.trace_rows import TracedRows
from foreshard.calibration.measure.samples import OUTLIER_RULE
from foreshard.calibration.measure.work_fit import fit_work
from foreshard.simulator.comms.measured_times import shape_words
from foreshard.simulator.measured.profile import CollectiveCurve, Profile, Provenance
from foreshard.topologies.errors import InputError

__all__ = ["Imported", "imported_profile", "joined"]

UNNAMED = "GPUs that the files do not name"
_MEANS = "times are means over many runs, so how single runs scatter is not known"
_SINGLE = "where a size has one row only, intervals of predictions count it as exact"
_IN_A_STEP = "times of kernels in training steps, beside whatever else the GPUs and links did then"
_WAITED = (
    "not all ranks were traced: a kernel waits for ranks that come later, so these times are upper limits, and their "
    "spread holds that wait"
)
_DATED = "the date is that of the newest file's last change: logs of nccl-tests have none"
_FIRST_YEAR = 2015  # Kineto counts from the epoch, or from baseTimeNanoseconds; anything else gives no such year


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """Everything that was read: logs, and traces of one run with what they gave."""

    logs: tuple[ImportedLog, ...] = ()
    traces: tuple[RawTrace, ...] = ()
    traced: TracedRows | None = None
    work: TracedWork = field(default_factory=TracedWork)

    @property
    def logged(self) -> tuple[Row, ...]:
        """The rows of logs, in the order in which they were given."""
        return tuple(row for log in self.logs for row in log.rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all files, by SAME_POINT_RULE: those of traces only for what no log measured."""
        known = {(row.kind, row.ranks_per_node) for row in self.logged}
        traced = self.traced.rows if self.traced is not None else ()
        return self.logged + tuple(row for row in traced if (row.kind, row.ranks_per_node) not in known)


def imported_profile(imported: Imported, *, name: str, command: str, device_name: str | None = None) -> Profile:
    """Return a profile of what was read, on `device_name` where that is given, else on what the files name.

    Raises InputError if nothing can be taken, or if files name different devices.
    """
    curves = curves_of(imported.rows)
    work = fit_work(imported.work.records)
    if not curves and not work:
        skipped = [*(imported.traced.skipped if imported.traced else ()), *imported.work.skipped]
        raise InputError(["nothing in the files can be taken into a profile", *skipped])
    worlds = [curve.ranks_per_node for curve in curves] or [(1,)]
    device = device_name or _device(imported)
    return Profile(
        name=name,
        provenance=tuple(_provenance(imported, command, device)),
        backend="nccl",
        device="cuda",
        device_name=device,
        ranks_per_node=max(worlds, key=sum),
        collectives=curves,
        work=work,
    )


def _device(imported: Imported) -> str:
    """The one device that the files name, as they name it; old drivers leave out NVIDIA."""
    named: dict[str, dict[str, str]] = {}
    sources = [(log.source, log.devices) for log in imported.logs]
    sources += [(trace.source, trace.devices) for trace in imported.traces]
    for source, devices in sources:
        for device in devices:
            named.setdefault(device.removeprefix("NVIDIA "), {}).setdefault(device, source.name)
    if len(named) > 1:
        found = "; ".join(f"{file} on {device}" for spellings in named.values() for device, file in spellings.items())
        raise InputError(f"the files are of different devices ({found}): import each into a profile of its own")
    spellings = [device for spellings in named.values() for device in spellings]
    return max(spellings, key=len, default=UNNAMED)


def _provenance(imported: Imported, command: str, device: str) -> Iterator[Provenance]:
    if imported.logs:
        yield _of_logs(imported.logs, command, device)
    if imported.traces:
        yield _of_traces(imported, command, device)


def _of_logs(logs: Sequence[ImportedLog], command: str, device: str) -> Provenance:
    files = [log.source for log in logs]
    return Provenance(
        name=f"nccl-tests {_digest(files)}",
        created=max(source.modified for source in files).isoformat(timespec="seconds"),
        command=command,
        hardware=f"{device}: {'; '.join(dict.fromkeys(_shape(log) for log in logs))}",
        versions=_versions(log.versions.items() for log in logs),
        notes=(*map(_of_log, logs), _MEANS, _SINGLE, SAME_POINT_RULE, OUTLIER_RULE, _DATED),
    )


def _shape(log: ImportedLog) -> str:
    return f"{shape_words(log.rows[0].ranks_per_node)} ranks"


def _of_log(log: ImportedLog) -> str:
    first = log.rows[0]
    runs = f", each the mean of {log.runs} runs" if log.runs else ""
    versions = "".join(f", {name} {version}" for name, version in sorted(log.versions.items()))
    return (
        f"{log.source.name}: {first.kind} of {shape_words(first.ranks_per_node)} ranks, {len(log.rows)} rows{runs}"
        f"{versions}, sha256 {log.source.sha256}"
    )


def _of_traces(imported: Imported, command: str, device: str) -> Provenance:
    traces, traced = imported.traces, imported.traced
    files = [trace.source for trace in traces]
    notes = [_of_trace(trace) for trace in traces] + [_IN_A_STEP]
    if traced is not None and traced.rows:
        notes += [_SINGLE, SAME_POINT_RULE] if traced.whole else [_SINGLE, SAME_POINT_RULE, _WAITED]
    notes += [OUTLIER_RULE, *imported.work.notes, *(traced.skipped if traced else ()), *imported.work.skipped]
    shape = traced.ranks_per_node if traced is not None else ()
    began = [_began(trace) or trace.source.modified for trace in traces]
    return Provenance(
        name=f"kineto {_digest(files)}",
        created=max(began).isoformat(timespec="seconds"),
        command=command,
        hardware=f"{device}: {shape_words(shape)} ranks" if shape else device,
        versions=_versions(_told(trace) for trace in traces),
        notes=tuple(notes),
    )


def _of_trace(trace: RawTrace) -> str:
    rank = trace.number("rank")
    whose = "a rank" if rank is None else f"rank {rank}"
    return f"{trace.source.name}: {whose}, {len(trace.collectives)} kernels of NCCL, sha256 {trace.source.sha256}"


def _told(trace: RawTrace) -> Iterator[tuple[str, str]]:
    """Versions that a trace tells."""
    for name, value in (
        ("nccl", trace.distributed.get("nccl_version")),
        ("cuda", trace.about.get("cuda_runtime_version")),
        ("driver", trace.about.get("cuda_driver_version")),
    ):
        if isinstance(value, str | int) and str(value):
            yield name, str(value)


def _versions(told: Iterable[Iterable[tuple[str, str]]]) -> dict[str, str]:
    """The versions that files tell, by name; several of one name in order."""
    found: dict[str, set[str]] = {}
    for pairs in told:
        for name, version in pairs:
            found.setdefault(name, set()).add(version)
    return {name: ", ".join(sorted(versions)) for name, versions in sorted(found.items())}


def _began(trace: RawTrace) -> datetime | None:
    """When the first collective of a trace ran, by its own clock; None if that is no clock of the epoch."""
    base = trace.about.get("baseTimeNanoseconds", 0)
    if not trace.collectives or not isinstance(base, int):
        return None
    try:
        began = datetime.fromtimestamp(int(base * 1e-9 + trace.collectives[0].start_us * 1e-6), UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return began if began.year >= _FIRST_YEAR else None


def _digest(files: Sequence[SourceFile]) -> str:
    """A short name for the contents of files, whatever their order."""
    return hashlib.sha256("".join(sorted(source.sha256 for source in files)).encode()).hexdigest()[:8]


def joined(old: Profile, new: Profile) -> Profile:
    """Return `old` with what was imported: curves and fits take the place of those for the same, others stay.

    Raises InputError with everything in which the two are not of the same machine.
    """
    if new.device_name == UNNAMED:
        new = replace(new, device_name=old.device_name)
    elif old.device_name == UNNAMED:
        old = replace(old, device_name=new.device_name)
    problems = [
        f"{name} = {getattr(old, name)!r} in the profile, but {getattr(new, name)!r} was imported: name another file"
        for name in ("backend", "device", "device_name")
        if getattr(old, name).removeprefix("NVIDIA ") != getattr(new, name).removeprefix("NVIDIA ")
    ]
    if problems:
        raise InputError(problems)
    again = {_key(curve) for curve in new.collectives}
    names = {origin.name for origin in new.provenance}
    fitted = {fit.kind for fit in new.work}
    return replace(
        old,
        provenance=(*(origin for origin in old.provenance if origin.name not in names), *new.provenance),
        ranks_per_node=max((old.ranks_per_node, new.ranks_per_node), key=sum),
        collectives=(*(curve for curve in old.collectives if _key(curve) not in again), *new.collectives),
        work=(*(fit for fit in old.work if fit.kind not in fitted), *new.work),
    )


def _key(curve: CollectiveCurve) -> tuple[object, ...]:
    return curve.kind, curve.ranks_per_node, curve.groups, curve.groups_per_node
