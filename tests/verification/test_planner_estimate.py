"""Outside truth for the planner estimate: TorchRec 1.9.2's own enumerator and planner, asked on CPU.

data/torchrec_planner_*.json holds its answers; torchrec_planner_cases.py makes them anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreshard.simulator.job.scenario import Comms, Execution
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import Dense, Table, Workload
from foreshard.simulator.torchrec.planner_estimate import (
    PlannerShard,
    PlannerTopology,
    planner_budget,
    shard_hbm,
    shard_perf,
)
from foreshard.simulator.torchrec.planner_rating import planner_estimate

DATA = Path(__file__).parent / "data"
DIGITS = 1e-12  # the same arithmetic in seconds and in TorchRec's milliseconds

# 1M x 128 fp32, pooling 10, 1,024 samples a rank, 16 GPUs of 2 hosts, default constants: ms per shard, forward compute,
# forward comms, backward compute, backward comms, input dist, total; read from EmbeddingEnumerator's output.
WORKED_EXAMPLE = {
    ("data_parallel", 128): (0.0121, 0, 0.0243, 16.9551, 0, 16.9915),
    ("table_wise", 128): (0.0972, 0.6250, 0.1943, 0.6250, 0.0977, 1.5415),
    ("column_wise", 32): (0.0443, 0.1562, 0.0886, 0.1562, 0.0977, 0.4454),
    ("table_column_wise", 32): (0.0443, 0.1562, 0.0886, 0.1562, 0.0977, 0.4454),
    ("row_wise", 128): (0.0142, 0.6250, 0.0285, 0.6464, 0.0977, 1.3141),
    ("table_row_wise", 128): (0.0198, 0.0911, 0.0395, 0.1125, 0.0977, 0.2630),
    ("grid_shard", 64): (0.0100, 0.0456, 0.0199, 0.0563, 0.0977, 0.1317),
}
MILLION = Table(name="t", num_embeddings=1_000_000, embedding_dim=128, pooling_factor=10.0)
TWO_HOSTS = PlannerTopology(world_size=16, local_world_size=8)


def answers(name: str) -> list[dict[str, Any]]:
    return json.loads((DATA / name).read_text())


def describe(case: dict[str, Any]) -> str:
    return (
        f"{case['sharding']}-{case['rows']}x{case['dim']}-{case['world_size']}-{case['optimizer']}-{case['pipeline']}"
    )


def table_of(case: dict[str, Any]) -> Table:
    return Table(
        name="t",
        num_embeddings=case["rows"],
        embedding_dim=case["dim"],
        pooling_factor=tuple(case["pooling_factors"]),
        pooling="sum" if case["pooled"] else "none",
        data_type=case["data_type"],
        feature_names=tuple(f"f{i}" for i in range(len(case["pooling_factors"]))),
    )


@pytest.mark.parametrize("case", answers("torchrec_planner_shards.json"), ids=describe)
def test_a_shard_costs_what_torchrec_computes(case: dict[str, Any]) -> None:
    """Every term of the time and every byte of the storage equal TorchRec's answer for the same shard."""
    topology = PlannerTopology(world_size=case["world_size"], local_world_size=case["local_world_size"])
    codec = {key: "fp32" if case[key] == "none" else case[key] for key in ("forward", "backward")}
    pipeline = "sparse_dist" if case["pipeline"] == "sparse_dist" else "base"
    for answer in case["shards"]:
        rows, columns = answer["size"]
        shard = PlannerShard(
            table=table_of(case), sharding=case["sharding"], rows=rows, columns=columns, kernel=case["kernel"]
        )
        perf = shard_perf(shard, case["batch_size"], Comms(**codec), topology)
        terms = [perf.fwd_compute_s, perf.fwd_comms_s, perf.bwd_compute_s, perf.bwd_comms_s, perf.prefetch_s]
        assert [1e3 * term for term in [*terms, perf.input_dist_s]] == pytest.approx(answer["perf_ms"], rel=DIGITS)
        assert 1e3 * perf.total_s == pytest.approx(answer["total_ms"], rel=DIGITS)
        assert shard_hbm(shard, case["batch_size"], case["optimizer"], pipeline, topology) == answer["hbm"]


@pytest.mark.parametrize(("sharding", "columns"), WORKED_EXAMPLE)
def test_the_worked_example_agrees_in_every_printed_digit(sharding: str, columns: int) -> None:
    rows = 1_000_000 // {"row_wise": 16, "table_row_wise": 8, "grid_shard": 8}.get(sharding, 1)
    perf = shard_perf(
        PlannerShard(table=MILLION, sharding=sharding, rows=rows, columns=columns), 1024, Comms(), TWO_HOSTS
    )
    terms = (perf.fwd_compute_s, perf.fwd_comms_s, perf.bwd_compute_s, perf.bwd_comms_s, perf.input_dist_s)
    assert tuple(round(1e3 * term, 4) for term in (*terms, perf.total_s)) == pytest.approx(
        WORKED_EXAMPLE[sharding, columns], abs=5.1e-5
    )


@pytest.mark.parametrize(("forward", "backward", "total_ms"), [("fp16", "bf16", 0.9034), ("int8", "bf16", 0.7407)])
def test_codecs_enter_the_planner_as_bytes_per_element_only(forward: str, backward: str, total_ms: float) -> None:
    shard = PlannerShard(table=MILLION, sharding="table_wise", rows=1_000_000, columns=128)
    perf = shard_perf(shard, 1024, Comms(forward=forward, backward=backward), TWO_HOSTS)
    assert round(1e3 * perf.total_s, 4) == total_ms


def test_the_host_boundary_is_a_cliff() -> None:
    """Table-wise comms of 8 GPUs cost 0.0065 ms and of 16 GPUs 0.625 ms: 96 times for twice the GPUs."""
    shard = PlannerShard(table=MILLION, sharding="table_wise", rows=1_000_000, columns=128)
    one = shard_perf(shard, 1024, Comms(), PlannerTopology(world_size=8, local_world_size=8)).fwd_comms_s
    two = shard_perf(shard, 1024, Comms(), TWO_HOSTS).fwd_comms_s
    assert (round(1e3 * one, 4), round(1e3 * two, 4), two / one) == (0.0065, 0.625, pytest.approx(96))


def resolved(case: dict[str, Any]) -> tuple[ShardedTable, ...]:
    tables = []
    for index, rows in enumerate(case["rows"]):
        placed = case["tables"][f"t{index}"]
        table = Table(
            name=f"t{index}",
            num_embeddings=rows,
            embedding_dim=case["embedding_dim"],
            pooling_factor=float(case["pooling_factors"][index]),
        )
        tables.append(
            ShardedTable(
                table=table,
                sharding=placed["sharding"],
                owner="range",
                owners=np.array([placed["ranks"]]),
                row_bounds=np.cumsum([0, *placed["heights"]]),
                col_bounds=np.array([0, case["embedding_dim"]]),
            )
        )
    return tuple(tables)


@pytest.mark.parametrize("case", answers("torchrec_planner_plans.json"), ids=lambda case: f"{case['world_size']}-gpus")
def test_the_ranks_of_torchrecs_own_mlperf_plans_add_up(case: dict[str, Any]) -> None:
    """The plan that TorchRec makes for the MLPerf tables has its rating, its bytes and its uncounted input dist."""
    sharded = resolved(case)
    workload = Workload(batch_size=case["batch_size"], tables=tuple(table.table for table in sharded))
    topology = PlannerTopology(
        world_size=case["world_size"], local_world_size=case["local_world_size"], hbm_cap_bytes=80 * 2**30
    )
    estimate = planner_estimate(workload, sharded, Comms(), Execution(optimizer=case["optimizer"]), topology)
    assert 1e3 * estimate.total_s == pytest.approx(np.array(case["perf_ms"]), rel=1e-9)
    assert 1e3 * estimate.seconds[-1] == pytest.approx(np.array(case["input_dist_ms"]), rel=1e-9)
    assert estimate.hbm_bytes.tolist() == case["hbm"]
    assert estimate.fits
    assert estimate.to_dict()["rating_s"] == pytest.approx(max(case["perf_ms"]) / 1e3, rel=1e-9)


def test_the_budget_is_85_percent_less_six_times_dense_and_twenty_times_ids() -> None:
    """HeuristicalStorageReservation's defaults: int(0.85 x 32 GiB) - 6 x 4 x parameters - 20 x 8 x ids."""
    dense = Dense(parameters=1000, forward_flops_per_sample=1.0)
    left = planner_budget((MILLION,), 4.0 * dense.num_parameters, 1024, TWO_HOSTS)
    assert left == int(0.85 * 32 * 2**30) - 24_000 - 20 * 8 * 10 * 1024
