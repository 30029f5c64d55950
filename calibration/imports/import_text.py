"""What an import took and left, as people read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tabulate import tabulate

from foreshard.calibration.imports.imported_profile import Imported
from foreshard.calibration.imports.measured import title_of, unlike
from foreshard.calibration.measure.device_profile import work_text
from foreshard.simulator.comms.single import bus_factor
from foreshard.simulator.measured.profile import CollectiveCurve, Profile
from foreshard.topologies.units import format_bytes, format_us

__all__ = ["import_notes", "import_text"]

_LATENCY_BYTES = 16 << 10  # up to here a collective's time is latency, as calibrate links takes it


def import_text(imported: Imported, profile: Profile) -> str:
    """Return the curves and fits that were imported as tables, and the notes below."""
    rows = Counter((row.kind, row.ranks_per_node) for row in imported.rows)
    header = ["collective", "from", "to", "points", "rows", "smallest (us)", "busbw of the largest (GB/s)"]
    body = [_cells(curve, rows[curve.kind, curve.ranks_per_node]) for curve in profile.collectives]
    parts = [tabulate(body, headers=header, disable_numparse=True)] if body else []
    parts += [work_text(profile.work)] if profile.work else []
    parts += ["\n".join(f"note: {note}" for note in import_notes(imported, profile))]
    return "\n\n".join(filter(None, parts))


def _beginning(curve: CollectiveCurve) -> str:
    first = curve.points[0]
    return (
        f"{title_of(curve)} begins at {format_bytes(first.nbytes)}: what is smaller takes less than "
        f"{format_us(first.median_s)} in the model's proportion; give rows from 1 KiB on too"
    )


def _cells(curve: CollectiveCurve, rows: int) -> list[str]:
    first, last = curve.points[0], curve.points[-1]
    busbw = last.nbytes / last.median_s * bus_factor(curve.kind, sum(curve.ranks_per_node)) / 1e9
    sizes = [format_bytes(point.nbytes) for point in (first, last)]
    return [title_of(curve), *sizes, str(len(curve.points)), str(rows), f"{first.median_s * 1e6:.1f}", f"{busbw:.2f}"]


def import_notes(imported: Imported, profile: Profile) -> Iterator[str]:
    """Yield what was found while reading, what was skipped and why, and what intervals will make of it."""
    for log in imported.logs:
        yield from (f"{log.source.name}: {note}" for note in log.notes)
    if imported.traces and (traced := imported.traced) is not None:
        yield from traced.skipped
        if left := len(imported.logged) + len(traced.rows) - len(imported.rows):
            yield f"{left} collectives of traces skipped: logs measured these collectives and shapes"
        yield from imported.work.notes
        yield from imported.work.skipped
        if traced.rows and not traced.whole:
            yield (
                "not all ranks of the run were traced: kernels of collectives hold the wait for others, so their times "
                "are upper limits; give the traces of all ranks"
            )
    yield from unlike(imported.logged)
    yield from (_beginning(curve) for curve in profile.collectives if curve.points[0].nbytes > _LATENCY_BYTES)
    single = sum(point.runs == 1 for curve in profile.collectives for point in curve.points)
    if single:
        yield (
            f"{single} points are one row each, a mean or a single run: how runs scatter is not known, and the "
            "intervals of predictions count them as exact"
        )
