"""TorchRec's Topology numbers in bytes and bytes/s; rates given per second where it wants them per ms are flagged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    picked = {key: value for key, value in entry.items() if key in known} if isinstance(entry, Mapping) else entry
    numbers = validated(TopologyNumbers, picked, ("topology",), problems)
    if numbers is None:
        return None, {}
    given = {name: getattr(numbers, name) for name in _IMPLAUSIBLE_BYTES_PER_S}
    per_ms = {name: rate for name, rate in given.items() if rate is not None}
    rates = {name: _bytes_per_s(name, rate, notes) for name, rate in per_ms.items()}
    notes += _suspects({name: rate for name, rate in per_ms.items() if rates[name] != rate}, len(per_ms))
    return numbers, {
        "world_size": numbers.world_size,
        "local_world_size": numbers.local_world_size,
        "hbm_cap_bytes": numbers.hbm_cap,
        "ddr_cap_bytes": numbers.ddr_cap,
        **{f"{name}_bytes_per_s": rate for name, rate in rates.items()},
    }


def _bytes_per_s(name: str, per_ms: float, notes: list[str]) -> float:
    rate = per_ms * 1e3
    if rate < _IMPLAUSIBLE_BYTES_PER_S[name]:
        return rate
    notes.append(
        f"topology.{name} = {per_ms:g} means {rate / 1e12:g} TB/s, for TorchRec counts bytes per millisecond: it was "
        f"surely given per second, {format_bandwidth(per_ms)}, and is kept so; the planner chose this plan with a "
        "rate 1,000 times too fast, so make the plan again"
    )
    return per_ms


def _suspects(kept: Mapping[str, float], given: int) -> Iterator[str]:
    """Yield a note on the rates that could be per ms, `kept` of those `given`, where another was not."""
    if kept and len(kept) < given:
        both = (
            f"{name} = {rate:g}, {format_bandwidth(rate * 1e3)} if per ms and {format_bandwidth(rate)} if per second"
            for name, rate in kept.items()
        )
        yield (
            "whoever gave a rate per second may have given the topology's others so, too: they are read per ms as "
            f"TorchRec does, check {'; '.join(both)}"
        )
