"""The constants that a machine may have of its own for collectives: their names, units and ranges.

Values stand in cluster files and presets; what a machine does not state is a default of the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["MACHINE_CONSTANTS", "ConstantRange"]

_MOST_S = 1.0  # longer than any network or library takes to begin: a forgotten unit
_MOST_PEERS = 1_000_000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstantRange:
    """Base unit ("s" or "1") of a constant and its range, from `low` (itself only where `closed`) to `high`."""

    unit: str
    low: float
    high: float
    closed: bool = True

    def problem(self, value: float) -> str | None:
        """What is wrong with a value in the base unit, None if nothing is."""
        if (self.low <= value if self.closed else self.low < value) and value <= self.high:
            return None
        unit = f" {self.unit}" if self.unit != "1" else ""
        start = f"from {self.low:g}" if self.closed else f"above {self.low:g}"
        return f"{value:g}{unit} is out of range: expected a value {start} to {self.high:g}{unit}"


_SECONDS = ConstantRange(unit="s", low=0.0, high=_MOST_S)
_SHARE = ConstantRange(unit="1", low=0.0, high=1.0, closed=False)

MACHINE_CONSTANTS: Mapping[str, ConstantRange] = MappingProxyType(
    {
        "network_latency_s": _SECONDS,
        "loaded_network_latency_s": _SECONDS,
        "network_overhead_s": _SECONDS,
        "ring_network_share": _SHARE,
        "ring_overlap": ConstantRange(unit="1", low=1.0, high=100.0),
        "all_to_all_network_share": _SHARE,
        "all_to_all_nvlink_share": _SHARE,
        "all_to_all_base_s": _SECONDS,
        "all_to_all_peer_s": _SECONDS,
        "all_to_all_measured_peers": ConstantRange(unit="1", low=0.0, high=_MOST_PEERS),
        "all_to_all_hops": ConstantRange(unit="1", low=0.0, high=100.0),
        "collective_launch_s": _SECONDS,
        "gloo_base_s": _SECONDS,
        "gloo_step_s": _SECONDS,
    }
)
"""Every constant by name; the simulator's defaults have the same names (held by a test)."""
