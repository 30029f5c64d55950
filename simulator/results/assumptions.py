"""Everything a prediction took for granted: name, value, unit and source, for the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version

import numpy as np

from foreshard.simulator.comms.machine_constants import machine_constants
from foreshard.simulator.comms.reach import beyond_measurement
from foreshard.simulator.job.codecs import carried
from foreshard.simulator.job.scenario import Assumption, Comms, Scenario
from foreshard.simulator.measured.profile import Profile
from foreshard.simulator.plans.balance import ROW_READ_FLOOR_BYTES, ROW_READ_SOURCE
from foreshard.simulator.results.profile_text import timed_by
from foreshard.simulator.step.memory import BATCHES_HELD
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.machine import Sourced

__all__ = ["assumptions_of", "foreshard_version"]


_ROUTINGS = {
    "expected": "expectation over the access distributions",
    "sampled": "one sampled batch per rank",
    "replayed": "recorded samples, in order",
}


def foreshard_version() -> str:
    """Version of the installed foreshard, such as "0.1.0"."""
    return version("foreshard")


def assumptions_of(
    scenario: Scenario,
    cluster: Cluster,
    costs: Mapping[str, Sourced],
    *,
    peers: int = 0,
    profile: Profile | None = None,
) -> tuple[Assumption, ...]:
    """Return what the scenario's author, the machine's description and the cost constants assume, in that order.

    `peers` is the most remote peers of any all-to-all of the step: said where nobody measured as many. What a `profile`
    measured is said as well: it holds for the machine at hand, which need not be the one that was measured.
    """
    floor = Assumption(name="row_read_bytes", value=float(ROW_READ_FLOOR_BYTES), unit="B", source=ROW_READ_SOURCE)
    return (
        *scenario.assumptions,
        *_execution(scenario),
        *_host_memory(scenario),
        *_codecs(scenario.comms),
        *_steps(scenario.comms),
        *_peers(cluster, peers),
        *_profile(profile, cluster),
        *_machine(cluster),
        *(_constant(name, sourced) for name, sourced in {**cluster.constants, **costs}.items()),
        floor,
    )


def _constant(name: str, sourced: Sourced) -> Assumption:
    return Assumption(name=name, value=sourced.value, unit=sourced.unit, source=sourced.source)


def _profile(profile: Profile | None, cluster: Cluster) -> Iterator[Assumption]:
    """Where measured times are from, or that ranks on CPUs have none."""
    name = profile.name if profile is not None else "none"
    told = timed_by(profile, on_cpu=cluster.on_cpu)
    if told:
        yield Assumption(name="cluster.profile", value=name, source=told)


def _execution(scenario: Scenario) -> Iterator[Assumption]:
    pipeline, routing = scenario.execution.pipeline, scenario.execution.routing
    held = BATCHES_HELD[pipeline]
    yield Assumption(
        name="execution.pipeline", value=pipeline, source=f"scenario; {held} batches are held on the device"
    )
    how = _ROUTINGS[routing]
    yield Assumption(name="execution.routing", value=routing, source=f"scenario; ids are routed by {how}")
    yield Assumption(name="execution.dedup", value=str(scenario.execution.dedup).lower(), source=_dedup(scenario))


def _dedup(scenario: Scenario) -> str:
    if not scenario.execution.dedup:
        return "scenario; ids are sent as often as the batch holds them, pooled tables are pooled by row owners"
    return (
        "scenario; a rank sends each distinct id of a table once; sequences are expanded (TorchRec use_index_dedup), "
        "pooled tables pooled (TensorFlow embedding_lookup_sparse) by the batch owner"
    )


def _host_memory(scenario: Scenario) -> Iterator[Assumption]:
    """How tables in host memory are predicted, if there are any."""
    shardings = dict(scenario.plan.tables)
    kernels = {shardings.get(table.name, scenario.plan.default).compute_kernel for table in scenario.workload.tables}
    if kernels == {"fused"}:
        return
    yield Assumption(
        name="tables in host memory",
        value="rows are fetched on demand and written back in the same step, one after the other with the kernels",
        source="no prefetch; at the rate of the host link while all ranks pull; optimizer state that is not row-wise "
        "lies there too, uncached (pytorch/FBGEMM, construct_split_state)",
    )
    if "fused_uvm_caching" in kernels:
        yield Assumption(
            name="cache of tables in host memory",
            value="an ideal one that holds the hottest rows of every shard: an upper bound on hits",
            source="FBGEMM's is set-associative, 32 ways, and evicts the least recently used (pytorch/FBGEMM, "
            "DEFAULT_ASSOC); of sampled and replayed batches the expected share misses",
        )


def _codecs(comms: Comms) -> Iterator[Assumption]:
    """Where a codec cannot be what the scenario asks for."""
    for name, precision in (("comms.forward", comms.forward), ("comms.backward", comms.backward)):
        if carried("reduce_scatter", precision) != precision:
            yield Assumption(
                name=name,
                value="16 bits in a reduce_scatter and its all_gather",
                source=f"rows of {precision} have scales of their own and cannot be summed on the way; TorchRec falls "
                "back as well (distributed/fbgemm_qcomm_codec.py)",
            )


def _steps(comms: Comms) -> Iterator[Assumption]:
    """What all-to-alls in two steps leave out."""
    if comms.all_to_all != "pairwise":
        yield Assumption(
            name="comms.all_to_all",
            value=comms.all_to_all,
            source="scenario; inside the nodes first, then between ranks of equal local position; putting blocks in "
            "order between the steps and telling sizes again is free, nor does it take memory",
        )


def _peers(cluster: Cluster, peers: int) -> Iterator[Assumption]:
    """An all-to-all with more peers than were measured."""
    if sentence := beyond_measurement(cluster, peers):
        source = machine_constants(cluster)["all_to_all_measured_peers"].source
        yield Assumption(name="all-to-all beyond measurement", value=sentence, source=source)


def _machine(cluster: Cluster) -> Iterator[Assumption]:
    """The GPUs, one link of each kind and speed, and what the machine's author assumed."""
    for gpu in cluster.gpus:
        yield Assumption(name=f"{gpu.name} memory", value=gpu.hbm_bytes, unit="B", source=gpu.source)
        yield Assumption(name=f"{gpu.name} bandwidth", value=gpu.hbm_bytes_per_s, unit="B/s", source=gpu.source)
    for number in _link_kinds(cluster):
        link = cluster.link(number)
        label = f"{link.kind} {_generic(link.src)}->{_generic(link.dst)}"
        yield Assumption(name=label, value=link.usable, unit="B/s", source=link.source)
    for sentence in cluster.assumptions:
        yield Assumption(name=f"machine {cluster.name}", value=sentence, source="the machine's description")


def _link_kinds(cluster: Cluster) -> list[int]:
    """One link number for every kind and usable bandwidth that occurs, in the order of their first link."""
    live = np.flatnonzero(cluster.link_usable > 0)
    pairs = np.stack([np.unique(cluster.link_kind[live], return_inverse=True)[1], cluster.link_usable[live]])
    _, first = np.unique(pairs, axis=1, return_index=True)
    return [int(live[index]) for index in np.sort(first)]


def _generic(end: str) -> str:
    """A device's name without its numbers and node: "node0/gpu3" is "gpu"."""
    return end.rsplit("/", 1)[-1].rstrip("0123456789")
