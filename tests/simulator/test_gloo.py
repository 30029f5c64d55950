"""gloo's collectives move the bytes that were counted on real ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foreshard.simulator.comms.collectives import Lowered, lower
from foreshard.simulator.comms.single import alone_s, uniform_collective
from foreshard.simulator.job.program import CollectiveKind
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.presets import load_preset

MIB = 1 << 20

# Bytes on the loopback in all, over the size: torch 2.13.0, 12 MiB of fp32, ranks in a network namespace of their own.
COUNTED = [
    ("all_reduce", 2, 2.002), ("all_reduce", 3, 4.005), ("all_reduce", 4, 6.007),
    ("reduce_scatter", 2, 2.002), ("reduce_scatter", 3, 4.005), ("reduce_scatter", 4, 6.007),
    ("all_gather", 2, 1.001), ("all_gather", 3, 2.002), ("all_gather", 4, 3.003),
    ("all_to_all", 2, 1.001), ("all_to_all", 3, 2.002), ("all_to_all", 4, 3.003),
    ("broadcast", 2, 1.002), ("broadcast", 3, 2.004), ("broadcast", 4, 3.003),
]  # fmt: skip


@pytest.fixture(scope="module")
def host() -> Cluster:
    return load_preset("cpu-host")


def loaded(host: Cluster, lowered: Lowered) -> Iterator[tuple[str, float]]:
    """Names of links with their bytes."""
    for phase in lowered.phases:
        for link, nbytes in zip(phase.links.tolist(), phase.nbytes.tolist(), strict=True):
            yield host.link_name(link), nbytes


@pytest.mark.parametrize(("kind", "ranks", "counted"), COUNTED)
def test_a_collective_moves_the_bytes_that_were_counted(
    host: Cluster, kind: CollectiveKind, ranks: int, counted: float
) -> None:
    """Over the loopback; the rest of what was counted, less than 0.3 %, are headers."""
    (lowered,) = lower(host, uniform_collective(kind, range(ranks), 12 * MIB))
    moved = sum(nbytes for name, nbytes in loaded(host, lowered) if name == "node0/cpu0->node0/cpu1")
    assert moved / (12 * MIB) == pytest.approx(counted, rel=3e-3)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_reduce_scatter_takes_as_long_as_an_all_reduce(host: Cluster, ranks: int) -> None:
    """It is one, and a copy that is not counted."""
    times = [
        alone_s(host, lower(host, uniform_collective(kind, range(ranks), MIB))[0])
        for kind in ("all_reduce", "reduce_scatter")
    ]
    assert times[0] == times[1]


def test_a_broadcast_reaches_every_rank_once(host: Cluster) -> None:
    """The size comes into each rank but the root."""
    (lowered,) = lower(host, uniform_collective("broadcast", range(4), MIB))
    into = {name: nbytes for name, nbytes in loaded(host, lowered) if name.startswith("node0/cpu1->node0/gpu")}
    assert into == {f"node0/cpu1->node0/gpu{rank}": MIB for rank in (1, 2, 3)}
