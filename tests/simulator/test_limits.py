"""Figures at the limits of what is read are predicted without a warning, those past them are refused."""

from __future__ import annotations

import math
import warnings

import pytest

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.results.report import report
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import InputError

PAST = {
    "workload.batch_size=10000000000000000000": "of at most 100,000,000",
    "workload.tables.t0.embedding_dim=20000000": "of at most 10,000,000",
    "workload.tables.t0.num_embeddings=10000000000000001": "of at most 1,000,000,000,000,000",
    "workload.tables.t0.pooling_factor=1e300": "of at most 1000000.0",
    "workload.tables.t0.pooling_factor=[1e300]": "of at most 1000000.0",
    "workload.tables.t0.pooling_factor=1e-300": "of at least 1e-09",
    "workload.tables.t0.num_poolings=1e300": "of at most 1000000.0",
    "workload.tables.t0.access.shift=1e300": "of at most 1,000,000,000,000,000,000",
    "workload.tables.t0.access.histogram=[1e300]": "of at most 1,000,000,000,000,000,000",
    "workload.dense.layers=[[100000000000000000000, 1]]": "of at most 10,000,000",
    "workload.dense={ forward_flops_per_sample = 1e300, parameters = 0 }": "of at most 1,000,000,000,000,000,000",
    "workload.dense={ forward_flops_per_sample = 0, parameters = 1000000000000000000000 }": "of at most",
    "layout.sync_interval=10000000000000000000000": "of at most 1,000,000,000,000",
    "execution.seed=100000000000000000000000": "of at most 9,223,372,036,854,775,807",
    "cluster.nodes=100000000000000000000000": "at most 65536",
}
AT = (
    ("workload.batch_size=100000000",),
    ("workload.all_tables.embedding_dim=10000000", "workload.all_tables.num_embeddings=1000"),
    ("workload.all_tables.num_embeddings=1000000000000000",),
    ("workload.all_tables.num_embeddings=1000000000000", "workload.all_tables.embedding_dim=1"),
    ("workload.all_tables.pooling_factor=1e6", "workload.all_tables.num_poolings=1e6"),
    ("workload.all_tables.pooling_factor=1e-9", "workload.all_tables.num_poolings=1e-9"),
    ("workload.batch_size=100000000", "workload.all_tables.pooling_factor=1e6", "workload.all_tables.num_poolings=1e6"),
    ("workload.all_tables.access.shift=1e18", "workload.all_tables.access.zipf=8"),
    ("workload.all_tables.access.shift=0", "workload.all_tables.access.zipf=8"),
    ("workload.dense.layers=[[10000000, 10000000, 10000000]]", "workload.batch_size=100000000"),
    (
        "workload.dense={ forward_flops_per_sample = 1e18, parameters = 1000000000000000000, kernels = 10000000 }",
        "workload.batch_size=100000000",
    ),
    ("layout.sharding_group_size=1", "layout.sync_interval=1000000000000"),
    ("layout.sharding_group_size=1", "layout.sync=gradients", "workload.batch_size=100000000"),
)
SCENARIO = {
    "schema": 1,
    "cluster": {"preset": "p5.48xlarge", "nodes": 1},
    "workload": {
        "batch_size": 1024,
        "tables": [
            {"name": "t0", "num_embeddings": 100_000, "embedding_dim": 64, "access": {"zipf": 1.05}},
            {"name": "t1", "num_embeddings": 100, "embedding_dim": 8, "pooling": "none"},
        ],
        "dense": {"layers": [[13, 64], [128, 1]]},
    },
}


@pytest.mark.parametrize("change", PAST)
def test_a_figure_past_its_limit_is_refused_with_the_limit(change: str) -> None:
    with pytest.raises(InputError) as caught:
        read_scenario(SCENARIO, [change])
    assert PAST[change] in str(caught.value)


@pytest.mark.parametrize("changes", AT, ids=" ".join)
def test_a_figure_at_its_limit_is_predicted_without_a_warning(changes: tuple[str, ...]) -> None:
    """Whatever can be read gives a finite step, or is refused as too large for the cluster."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if "num_embeddings=1000000" in changes[0]:
            with pytest.raises(InputError, match="all 8 GPUs together have"):
                read_scenario(SCENARIO, changes)
            return
        told = report(Prediction(read_scenario(SCENARIO, changes)))
    assert math.isfinite(told.step_time_s)
    assert told.step_time_s > 0
