"""What a report says of its profile: where it is from, what it did not cover, and what leaves the measured range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from foreshard.simulator.results.section import Section

if TYPE_CHECKING:
    from foreshard.simulator.measured.profile import Profile, Provenance
    from foreshard.simulator.results.profile_use import ProfileUse

__all__ = ["NOT_CALIBRATED", "coverage_words", "profile_section", "timed_by"]

NOT_CALIBRATED = "NOT CALIBRATED: constants of ranks on CPUs are assumed; give cluster.profile"
_USUAL_DRAWS = 64


def timed_by(profile: Profile | None, *, on_cpu: bool) -> str:
    """Return where predicted times are from, in one sentence; nothing for a machine with published constants."""
    if profile is None:
        return NOT_CALIBRATED if on_cpu else ""
    origins = "; ".join(_origin(origin) for origin in profile.provenance)
    return f"profile {profile.name!r} where it measured, else the model ({origins})"


def _origin(origin: Provenance) -> str:
    return f"{origin.name}: {origin.command}, {origin.created}, {origin.hardware}"


def coverage_words(use: ProfileUse) -> str:
    """Return how much of a step was measured, for the report's first lines."""
    shapes, kinds = use.collectives, use.work
    measured = (sum(bool(shape.curve) for shape in shapes), sum(kind.measured for kind in kinds))
    above = len(list(use.above()))
    beyond = f"; {above} BEYOND WHAT WAS MEASURED" if above else ""
    return (
        f"{use.name}: measured {measured[0]} of {len(shapes)} kinds and shapes of collectives, {measured[1]} of "
        f"{len(kinds)} kinds of work{beyond}"
    )


def profile_section(use: ProfileUse) -> Section:
    """Return the part of a report about its profile."""
    rows = tuple((origin.name, origin.created, origin.hardware, origin.command) for origin in use.provenance)
    return Section(
        title=f"Profile {use.name}: {use.backend}, {use.device_name}",
        headers=("measured", "when", "on", "by"),
        rows=rows,
        notes=tuple(_notes(use)),
    )


def _notes(use: ProfileUse) -> Iterator[str]:
    for origin in use.provenance:
        yield from (f"{origin.name}: {note}" for note in origin.notes)
    if use.modelled:
        yield f"not measured, so modelled: {'; '.join(use.modelled)}"
    for shape in use.collectives:
        if shape.curve and shape.curve != shape.collective:
            yield f"{shape.collective}: not measured so; by the curve of {shape.curve}, sharing links"
    yield from use.above()
    yield from use.below()
    yield from use.notes
    if use.draws:
        fewer = f", instead of {_USUAL_DRAWS} for a smaller step," if use.draws < _USUAL_DRAWS else ""
        held = "; what was modelled counts as exact" if use.modelled else ""
        yield f"80 % intervals: {use.draws} steps{fewer} with residuals and noise of the profile drawn anew{held}"
