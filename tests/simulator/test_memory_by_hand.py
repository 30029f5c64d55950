"""Memory items of small jobs, worked out by hand: what replicas exchange, what is alone, what is used at once."""

from pathlib import Path

import numpy as np
import pytest

from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.scenario import ClusterChoice, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Dense, Table, Workload
from foreshard.simulator.results.report import memory_of
from foreshard.simulator.step.memory import Memory
from foreshard.simulator.step.prediction import Prediction

ONE_GPU = """
schema = 1
name = "one"
gpu = "A10-24GB"

[node]
gpus = 1
cpus = 1
pcie_switches = 0
nics = 1
host_memory = "512 GiB"
pcie = "pcie4-x16"
memory = "ddr4-3200-x8"
smp = "xgmi-milan"
nic = "edr-100g"
source = "made up for a test"

[fabric]
kind = "single_switch"
source = "made up for a test"
"""
ROWS, DIM, SAMPLES = 800, 16, 32
TABLE = Table(name="t", num_embeddings=ROWS, embedding_dim=DIM, pooling_factor=3)


def memory(cluster=None, layout=None, dense=None, table=TABLE, sharding="row_wise"):
    prediction = Prediction(
        Scenario(
            cluster=cluster or ClusterChoice(preset="p5.48xlarge"),
            workload=Workload(batch_size=SAMPLES, tables=(table,), dense=dense or Dense(layers=((4, 8),))),
            plan=Plan(default=TableSharding(sharding=sharding)),
            layout=layout or Layout(),
        )
    )
    return memory_of(prediction)


def test_replicas_keep_their_own_gradients_and_those_gathered_of_all():
    """Two replicas; a rank of 4 owns 200 uniform rows and touches 200 (1 - (1 - 1/800)^384) of them by expectation.

    A row is packed as its id, 8 bytes, and 16 gradients in fp32: once its own, once for each replica.
    """
    found = memory(layout=Layout(sharding_group_size=4, sync="gradients"))
    touched = 200 * (1 - (1 - 1 / ROWS) ** (4 * SAMPLES * 3))
    assert found.items["replica_sync"] == pytest.approx(3 * touched * (8 + 4 * DIM), rel=1e-9)
    assert not memory(layout=Layout(sharding_group_size=4, sync="weights")).items["replica_sync"].any()
    assert not memory().items["replica_sync"].any()


def test_one_rank_alone_has_no_gradient_buckets(tmp_path: Path):
    """DistributedDataParallel copies gradients into buckets to average them, of which there is nothing in one rank."""
    (tmp_path / "one.toml").write_text(ONE_GPU, encoding="utf-8")
    dense, replicated = Dense(layers=((4, 8),)), ROWS * DIM * 4
    alone = memory(ClusterChoice(file=str(tmp_path / "one.toml")), dense=dense, sharding="data_parallel")
    many = memory(dense=dense, sharding="data_parallel")
    assert alone.items["dense_gradients"].tolist() == [4 * dense.num_parameters]
    assert alone.items["gradient_buckets"].tolist() == [0.0]
    assert many.items["gradient_buckets"].tolist() == 8 * [4.0 * dense.num_parameters + replicated]


@pytest.mark.parametrize("hidden", [8, 4000])
def test_gathered_weights_and_activations_take_each_others_place(hidden):
    """Fully sharded weights are whole during look-up and update only, activations between: the larger counts.

    Of 4 ranks in each of two groups one holds 200 rows of 64 bytes whole; activations are 32 samples of fp32 widths.
    """
    dense = Dense(layers=((4, hidden),))
    found = memory(layout=Layout(sharding_group_size=4, sync="fully_sharded"), dense=dense)
    gathered = 200 * DIM * 4
    usual = memory(dense=dense).items["activations"]
    assert found.items["weights_gathered"].tolist() == 8 * [gathered]
    assert found.items["activations"].tolist() == np.maximum(0, usual - gathered).tolist()
    assert (found.items["activations"] > 0).all() == (hidden == 4000)


def test_the_fullest_rank_is_the_one_with_the_largest_share_of_its_own_memory():
    """50 of 100 bytes are less than 40 of 45, whichever GPU is first."""
    for order in ([0, 1], [1, 0]):
        used, cap = np.array([50.0, 40.0])[order], np.array([100.0, 45.0])[order]
        found = Memory(items={"weights_sharded": used}, hbm_cap_bytes=cap)
        assert found.peak_rank == order.index(1)
