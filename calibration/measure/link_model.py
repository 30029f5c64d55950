"""What the simulator's model says of measured links: bytes on interfaces, gloo's constants, uneven all_to_alls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from foreshard.calibration.measure.link_fit import fit_sum
from foreshard.calibration.measure.link_plan import ELEMENT_BYTES, GroupShape, group_shapes, uneven_splits
from foreshard.calibration.measure.link_records import LinkRecord, Settings, Wire
from foreshard.calibration.measure.samples import point_of
from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.measured_times import MeasuredCollectives
from foreshard.simulator.comms.single import alone_s
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.scenario import Constant
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.measured.profile import Profile
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.machine import LEAF, ClusterSpec, Fabric, Gpu, Link, LinkKind, NodeGroup, NodeSpec, Sourced

__all__ = ["bare_cluster", "gloo_constants", "modelled_wire", "predicted_uneven_s"]

FloatArray = NDArray[np.float64]

_ENDLESS = 1e15  # B/s of links whose rate does not matter
_SMALL_BYTES = 16 << 10  # up to here latency is measured
_UNNAMED = "stands for a link of the measured machine"


def bare_cluster(
    ranks_per_node: Sequence[int], *, loopback_bytes_per_s: float = _ENDLESS, network_bytes_per_s: float = _ENDLESS
) -> Cluster:
    """Return nodes of CPU ranks with nothing but their sockets: loopback inside, one NIC to one switch, no latency."""
    groups = tuple(
        NodeGroup(node=_node(ranks, loopback_bytes_per_s, network_bytes_per_s), nodes=sum(1 for _ in equal))
        for ranks, equal in groupby(ranks_per_node)
    )
    return Cluster(ClusterSpec(name="measured", groups=groups, fabric=Fabric(source=_UNNAMED), backend="gloo"))


def _node(ranks: int, loopback: float, network: float) -> NodeSpec:
    rank = Gpu(
        name="rank", architecture="cpu", hbm_bytes=1.0, hbm_bytes_per_s=1.0, l2_bytes=1.0, flops={"fp32": 1.0},
        source=_UNNAMED,
    )  # fmt: skip
    links = [link for index in range(ranks) for link in _both(f"gpu{index}", "cpu0", loopback, "loopback")]
    links += _both("cpu0", "mem0", _ENDLESS, "dram") + _both("nic0", "cpu0", _ENDLESS, "dram")
    links += _both("nic0", LEAF, network, "network")
    return NodeSpec(
        name=f"{ranks} ranks", gpus=(rank,) * ranks, links=tuple(links), host_memory_bytes=1.0, source=_UNNAMED
    )


def _both(a: str, b: str, rate: float, kind: LinkKind) -> list[Link]:
    return [
        Link(src=src, dst=dst, bandwidth=rate, usable=rate, latency_s=0.0, kind=kind, source=_UNNAMED)
        for src, dst in ((a, b), (b, a))
    ]


def modelled_wire(settings: Settings, record: LinkRecord) -> Wire:
    """Return the bytes that the model of gloo puts on the interfaces where `record` counted them."""
    cluster = bare_cluster(settings.ranks_per_node)
    total = np.zeros(len(cluster.link_usable))
    for lowered in lower(cluster, _collective(settings, record)):
        for phase in lowered.phases:
            np.add.at(total, phase.links, phase.nbytes)
    sent, received, socket = np.zeros((3, cluster.nodes))
    for link, nbytes in enumerate(total):
        ends = cluster.link_name(link).split("->")
        node = int(next(end for end in ends if end.startswith("node")).split("/")[0].removeprefix("node"))
        sent[node] += nbytes if ends[1].startswith("leaf") else 0.0
        received[node] += nbytes if ends[0].startswith("leaf") else 0.0
        socket[node] += nbytes if "/gpu" in ends[0] else 0.0
    looped = socket - sent
    return Wire(sent=tuple(sent.tolist()), received=tuple(received.tolist()), looped=tuple(looped.tolist()))


def gloo_constants(settings: Settings, records: Iterable[LinkRecord], source: str) -> tuple[Constant, ...]:
    """Return the constants of gloo's model that fit the latencies of all small collectives, robust on logarithms.

    Its time without bytes is a sum of the constants, each as often as the algorithm says; empty for NCCL, and where no
    collective was small.
    """
    small = [it for it in records if it.kind != "send_recv" and not it.pattern and it.nbytes <= _SMALL_BYTES]
    if settings.backend != "gloo" or not small:
        return ()
    names = ("gloo_base_s", "gloo_step_s")
    bare = bare_cluster(settings.ranks_per_node)
    ones = [{each: Sourced(value=float(each == name), unit="s", source=_UNNAMED) for each in names} for name in names]
    units = [bare.with_constants(constants) for constants in ones]
    rows = np.array([[_alone_s(unit, settings, record) for unit in units] for record in small])
    values = fit_sum(rows, [point_of(record.times_s).median_s for record in small], [1e-4, 1e-4])
    return tuple(Constant(name=name, value=value, source=source) for name, value in zip(names, values, strict=True))


def _alone_s(cluster: Cluster, settings: Settings, record: LinkRecord) -> float:
    return max(alone_s(cluster, lowered) for lowered in lower(cluster, _collective(settings, record)))


def predicted_uneven_s(settings: Settings, record: LinkRecord, profile: Profile, seed: int) -> float | None:
    """Return the seconds that a profile predicts for an uneven all_to_all, from the even ones it holds; None if none.

    Links have the rates that were fitted between pairs of ranks.
    """
    rates = {pair.where: pair.bytes_per_s for pair in profile.pairs}
    cluster = bare_cluster(
        settings.ranks_per_node,
        loopback_bytes_per_s=rates.get("same_node", _ENDLESS),
        network_bytes_per_s=rates.get("other_node", _ENDLESS),
    )
    shape = _shape(settings, record)
    splits = uneven_splits(record.pattern, shape.members, record.nbytes, seed)
    traffic = PairBytes.dense((splits * ELEMENT_BYTES).astype(np.float64))
    collective = Collective(kind="all_to_all", groups=shape.groups, traffic=(traffic,))
    times = [timed.seconds for timed in MeasuredCollectives(profile).times(cluster, collective) if timed is not None]
    return max(times, default=None)


def _collective(settings: Settings, record: LinkRecord) -> Collective:
    shape = _shape(settings, record)
    assert record.kind != "send_recv"
    if record.kind == "all_to_all":
        traffic = PairBytes.uniform(shape.members, record.nbytes)
        return Collective(kind="all_to_all", groups=shape.groups, traffic=(traffic,))
    return Collective(kind=record.kind, groups=shape.groups, nbytes=(float(record.nbytes),))


def _shape(settings: Settings, record: LinkRecord) -> GroupShape:
    key = record.ranks_per_node, record.groups, record.groups_per_node
    return next(shape for shape in group_shapes(np.array(settings.node_of)) if shape.key == key)
