"""Weights of recorded ids go to the owners of pooled tables, after the ids and half as wide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreshard.simulator.files.document import to_document
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.scenario import ClusterChoice, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Replay, Table, Workload
from foreshard.simulator.lookups.batch_files import write_batch
from foreshard.simulator.lookups.sampling import SampledBatches
from foreshard.simulator.step.memory import predict_memory
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import InputError

IDS_PER_RANK = 2 * 4 * 3  # features, samples, ids of each


def predicted(folder: Path, *, weights: bool, pooling: Any = "sum", dedup: bool = False, pipeline: Any = "base"):
    ids = IDS_PER_RANK * 8
    batch = JaggedBatch(
        features=("pooled", "other"),
        lengths=np.full((2, 32), 3, dtype=np.int64),
        values=np.arange(ids) % 50,
        weights=np.full(ids, 0.5) if weights else None,
    )
    write_batch(batch, folder / f"{weights}.npz")
    tables = (
        Table(name="pooled", num_embeddings=50, embedding_dim=4, pooling_factor=3.0, pooling=pooling),
        Table(name="other", num_embeddings=50, embedding_dim=4, pooling_factor=3.0, pooling=pooling),
    )
    scenario = Scenario(
        cluster=ClusterChoice(preset="p5.48xlarge"),
        workload=Workload(batch_size=4, tables=tables, replay=Replay(file=str(folder / f"{weights}.npz"))),
        plan=Plan(default=TableSharding(sharding="row_wise")),
        execution=Execution(routing="replayed", dedup=dedup, pipeline=pipeline),
    )
    return Prediction(scenario)


def ops_of(prediction: Prediction) -> dict[str, Any]:
    return {op.name: op for op in prediction.program(None).ops}


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist"])
def test_weights_follow_the_ids_to_their_owners_and_are_put_in_table_order_with_them(tmp_path, pipeline):
    ops = ops_of(predicted(tmp_path, weights=True, pipeline=pipeline))
    names = list(ops)
    assert names.index("input_dist.weights.row_wise") == names.index("input_dist.values.row_wise") + 1
    values, weights = (ops[f"input_dist.{what}.row_wise"].work.traffic[0] for what in ("values", "weights"))
    assert values.bytes_out().sum() == 2 * weights.bytes_out().sum() > 0
    assert [dep.op for dep in ops["input_dist.recat.row_wise"].deps] == ["input_dist.weights.row_wise"]


def test_one_more_number_is_told_to_every_peer(tmp_path):
    """How many weights come, beside keys, lengths and ids: 8 bytes to each of 8 ranks, 7 of them others."""
    with_weights, without = (ops_of(predicted(tmp_path, weights=given)) for given in (True, False))
    told = [ops["input_dist.splits.row_wise"].work.traffic[0].bytes_out()[0] for ops in (with_weights, without)]
    assert told == [4 * 8 * 7, 3 * 8 * 7]


@pytest.mark.parametrize("how", [{"pooling": "none"}, {"dedup": True}])
def test_no_weights_are_sent_where_owners_return_vectors_id_by_id(tmp_path, how):
    assert "input_dist.weights" not in " ".join(ops_of(predicted(tmp_path, weights=True, **how)))


def test_batches_with_weights_take_four_bytes_more_an_id_in_memory(tmp_path):
    """Two batches are held by the base pipeline."""
    held = []
    for given in (True, False):
        one = predicted(tmp_path, weights=given)
        held.append(predict_memory(one.scenario, one.cluster, one.layout, one.sharded, one.demand).items)
    assert (held[0]["input_batches"] - held[1]["input_batches"] == 2 * 4 * IDS_PER_RANK).all()
    assert (held[0]["input_dist"] > held[1]["input_dist"]).all()


# -- drawn ids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("routing", ["expected", "sampled"])
def test_weights_of_drawn_ids_are_sent_and_held_like_recorded_ones(routing):
    changes = [f"execution.routing={routing}", "workload.batch_size=64", "cluster.nodes=1"]
    plain, weighted = (
        Prediction(read_scenario("mlperf-dcnv2-p5", [*changes, f"workload.weighted={told}"]))
        for told in ("false", "true")
    )
    before, after = ops_of(plain), ops_of(weighted)
    assert after.keys() - before.keys() == {"input_dist.weights.table_wise", "input_dist.weights.row_wise"}
    for family in ("table_wise", "row_wise"):
        ids, weights = (after[f"input_dist.{what}.{family}"].work.traffic[0] for what in ("values", "weights"))
        assert ids.bytes_out() == pytest.approx(2 * weights.bytes_out())
    held = [
        predict_memory(one.scenario, one.cluster, one.layout, one.sharded, one.demand).items["input_batches"]
        for one in (plain, weighted)
    ]
    assert (held[1] > held[0]).all()
    assert weighted.step_time_s > plain.step_time_s


def test_drawn_weights_change_no_id():
    workload = Workload(batch_size=8, tables=(Table(name="t", num_embeddings=50, embedding_dim=4, pooling_factor=3.0),))
    plain, weighted = (SampledBatches(each, 2)[1] for each in (workload, replace(workload, weighted=True)))
    assert (plain.values == weighted.values).all()
    assert plain.weights is None
    assert weighted.weights is not None
    assert (weighted.weights == 1).all()


def test_recorded_ids_have_weights_of_their_own():
    with pytest.raises(InputError, match=r"workload.weighted is for drawn ids"):
        read_scenario("product-rows", ["workload.weighted=true"])


def test_the_key_survives_writing():
    scenario = read_scenario("mlperf-dcnv2-p5", ["workload.weighted=true"])
    assert read_scenario(to_document(scenario)).workload.weighted
    assert "weighted" not in to_document(read_scenario("mlperf-dcnv2-p5"))["workload"]
