"""Scenarios on machines of the user's own: the file says how many nodes there are, and of which kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.single import alone_s
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective
from foreshard.simulator.results.report import report
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.presets import load_preset

FOUR = 'schema = 1\nname = "four"\npreset = "p5.48xlarge"\nnodes = 4\n'
MIXED = """schema = 1
name = "mixed"
[[groups]]
preset = "dgx-a100"
nodes = 1
[[groups]]
preset = "dgx-h100"
nodes = 2
"""
SHIPPED = "mlperf-dcnv2-p5"
SMALL = ("workload.batch_size=64", "workload.dense.data_type=bf16")


def predicted(folder: Path, text: str, *overrides: str) -> Prediction:
    path = folder / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    document = {"schema": 1, "cluster": {"file": str(path)}}
    base = read_scenario(SHIPPED, SMALL)
    from foreshard.simulator.files.document import to_document

    return Prediction(read_scenario({**to_document(base), **document}, overrides))


def test_a_cluster_file_keeps_its_number_of_nodes(tmp_path: Path) -> None:
    """A scenario that names no number takes the file's, and --set still changes it."""
    assert predicted(tmp_path, FOUR).cluster.nodes == 4
    assert predicted(tmp_path, FOUR, "cluster.nodes=2").cluster.nodes == 2


def test_nodes_of_different_kinds_run_one_step(tmp_path: Path) -> None:
    """A100 and H100 nodes in one job: the step is predicted, and the slower GPUs are the slower ranks."""
    prediction = predicted(tmp_path, MIXED)
    assert prediction.cluster.size == 24
    assert report(prediction).step_time_s > 0
    [forward] = [op for op in prediction.program(None).ops if op.name == "forward"]
    assert forward.work.seconds[0] >= forward.work.seconds[8]


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
@pytest.mark.parametrize("preset", ["p5.48xlarge", "p4d.24xlarge", "dgx-h100", "a3-mega"])
@pytest.mark.parametrize("factor", [0.5, 0.1])
def test_a_damaged_card_breaks_no_bound(kind: str, preset: str, factor: float) -> None:
    """Whatever one card still carries, no collective is predicted faster than its bound."""
    for nodes in (2, 3, 4, 8):
        cluster = load_preset(preset, nodes, {"node0/nic0<->*": factor})
        for nbytes in (2.0**20, 2.0**30, 2.0**36):
            collective = Collective(kind=kind, groups=Groups.world(cluster.size), nbytes=(nbytes,))
            [lowered] = lower(cluster, collective)
            assert alone_s(cluster, lowered) >= lowered.bound_s * (1 - 1e-9)


@pytest.mark.parametrize("sizes", [(5, 8), (8, 8, 6), (5, 8, 8, 6), (1, 8, 8), (3, 7, 2)])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_nodes_with_unequal_shares_break_no_bound(kind: str, sizes: tuple[int, ...]) -> None:
    """Groups that take different numbers of ranks from their nodes keep to their bounds as well."""
    cluster = load_preset("dgx-h100", len(sizes))
    ranks = [8 * node + rank for node, size in enumerate(sizes) for rank in range(size)]
    rest = [rank for rank in range(cluster.size) if rank not in ranks]
    groups = Groups([ranks, rest]) if rest else Groups([ranks])
    for nbytes in (2.0**20, 2.0**33):
        lowered = lower(cluster, Collective(kind=kind, groups=groups, nbytes=(nbytes,)))[0]
        assert alone_s(cluster, lowered) >= lowered.bound_s * (1 - 1e-9)


def test_the_bound_of_equal_ends_is_what_their_ports_must_move() -> None:
    """By hand: 2 (m - 1)/m of the buffer over the 8 cards of 50 GB/s of each of m nodes; (n - 1)/n inside a node."""
    size = 2.0**30
    for nodes in (2, 4, 8):
        cluster = load_preset("p5.48xlarge", nodes)
        [found] = lower(cluster, Collective(kind="all_reduce", groups=Groups.world(cluster.size), nbytes=(size,)))
        assert found.bound_s == pytest.approx(2 * (nodes - 1) / nodes * size / (8 * 50e9))
    one = load_preset("dgx-a100", 1)
    [found] = lower(one, Collective(kind="all_gather", groups=Groups.world(8), nbytes=(size,)))
    assert found.bound_s == pytest.approx(7 / 8 * size / 300e9)
