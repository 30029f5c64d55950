"""The busiest link of each kind in a step, and which operations keep it busy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from foreshard.simulator.results.link_load import LinkLoads
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.machine import LinkKind

__all__ = ["BusyLink", "busy_links"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BusyLink:
    """A link that carries `nbytes` in a step, for which it needs `busy_s` at the `usable` bytes/s it really carries.

    `operations` are who sends them, the most first: name and bytes.
    """

    link: str
    kind: LinkKind
    usable: float
    nbytes: float
    busy_s: float
    operations: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values in bytes, B/s and seconds."""
        return {**asdict(self), "operations": dict(self.operations)}


def busy_links(source: Prediction) -> tuple[BusyLink, ...]:
    """Return the busiest link of each kind in the step of `source.trace`, the busiest first."""
    trace, cluster = source.trace, source.cluster
    loads = LinkLoads(trace, source.program(source.shown_sync), cluster)
    found = []
    for number in loads.busiest():
        link, nbytes = cluster.link(number), float(loads.nbytes[number])
        over = sorted(loads.ops_over(number).items(), key=lambda item: (-item[1], item[0]))
        found.append(
            BusyLink(
                link=cluster.link_name(number),
                kind=link.kind,
                usable=link.usable,
                nbytes=nbytes,
                busy_s=nbytes / link.usable,
                operations=tuple((trace.ops[op].name, moved) for op, moved in over),
            )
        )
    return tuple(found)
