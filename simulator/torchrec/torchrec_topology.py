"""TorchRec's Topology numbers in bytes and bytes/s; rates given per second where it wants them per ms are flagged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from annotated_types import Ge, Gt

from foreshard.simulator.job.validation import validated
from foreshard.topologies.units import format_bandwidth

__all__ = ["TopologyNumbers", "read_topology"]

# TorchRec keeps rates in bytes per millisecond (meta-pytorch/torchrec planner/constants.py). No machine of this decade
# comes within ten times of these rates, in bytes/s: HBM3e 8 TB/s, NVLink5 0.9 TB/s, a NIC 0.1 TB/s.
_IMPLAUSIBLE_BYTES_PER_S = {
    "hbm_mem_bw": 100e12,
    "ddr_mem_bw": 10e12,
    "hbm_to_ddr_mem_bw": 10e12,
    "intra_host_bw": 10e12,
    "inter_host_bw": 2e12,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TopologyNumbers:
    """What `Topology.to_reproduction_dict()` holds and foreshard keeps; rates in bytes per ms as TorchRec has them."""

    world_size: Annotated[int, Gt(0)]
    local_world_size: Annotated[int, Gt(0)]
    hbm_cap: Annotated[int, Ge(0)] = 0
    ddr_cap: Annotated[int, Ge(0)] = 0
    hbm_mem_bw: Annotated[float, Gt(0)] | None = None
    ddr_mem_bw: Annotated[float, Gt(0)] | None = None
    hbm_to_ddr_mem_bw: Annotated[float, Gt(0)] | None = None
    intra_host_bw: Annotated[float, Gt(0)] | None = None
    inter_host_bw: Annotated[float, Gt(0)] | None = None


def read_topology(entry: Any, problems: list[str], notes: list[str]) -> tuple[TopologyNumbers | None, dict[str, Any]]:
    """Return TorchRec's topology and its numbers in bytes and bytes/s; mistakes go to `problems`, doubts to `notes`."""
    known = {field.name for field in fields(TopologyNumbers)}
    given = {key: value for key, value in entry.items() if key in known} if isinstance(entry, Mapping) else entry
    numbers = validated(TopologyNumbers, given, ("topology",), problems)
    if numbers is None:
        return None, {}
    rates = {name: _bytes_per_s(name, getattr(numbers, name), notes) for name in _IMPLAUSIBLE_BYTES_PER_S}
    return numbers, {
        "world_size": numbers.world_size,
        "local_world_size": numbers.local_world_size,
        "hbm_cap_bytes": numbers.hbm_cap,
        "ddr_cap_bytes": numbers.ddr_cap,
        **{f"{name}_bytes_per_s": rate for name, rate in rates.items() if rate is not None},
    }


def _bytes_per_s(name: str, per_ms: float | None, notes: list[str]) -> float | None:
    if per_ms is None:
        return None
    rate = per_ms * 1e3
    if rate < _IMPLAUSIBLE_BYTES_PER_S[name]:
        return rate
    notes.append(
        f"topology.{name} = {per_ms:g} means {rate / 1e12:g} TB/s, for TorchRec counts bytes per millisecond: it was "
        f"surely given per second, {format_bandwidth(per_ms)}, and is kept so; the planner chose this plan with a "
        "rate 1,000 times too fast, so make the plan again"
    )
    return per_ms
