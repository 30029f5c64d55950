"""`foreshard run --testbed`: a step of two nodes, trained for real across their links."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from foreshard.calibration.testbed.description import Probe, cluster_text
from foreshard.calibration.testbed.shape import bed_link, parse_shape
from foreshard.topologies import cli

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.usefixtures("can_build"),
    pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch"),
]

SHAPE, RATE, STEPS = "2x1", "5 Mbit/s", 12

# Rows on one rank, vectors for both: 128 samples x 64 columns of fp32 cross the link for every table, there and back.
SCENARIO = """
schema = 1
cluster.file = "cluster.toml"
workload.batch_size = 128
workload.dense.layers = [[13, 64], [320, 1]]
plan.default = "table_wise"
execution.routing = "sampled"
"""
TABLE = """
[[workload.tables]]
name = "t{place}"
num_embeddings = 1000
embedding_dim = 64
pooling_factor = 4
"""


def test_a_step_of_two_nodes_takes_as_long_as_its_bytes_need_on_their_links(tmp_path, capfd):
    """Bytes as predicted, and all steps no quicker than the rate allows, less what bursts let through at once."""
    link = bed_link(RATE)
    probe = Probe(
        flops=5e9, memory_bytes_per_s=5e9, link_bytes_per_s=(link.payload_bytes_per_s,) * 2, link_latency_s=1e-4,
        loopback_bytes_per_s=1e9, loopback_latency_s=5e-5,
    )  # fmt: skip
    (tmp_path / "cluster.toml").write_text(cluster_text(parse_shape(SHAPE), link, probe))
    scenario = tmp_path / "job.toml"
    scenario.write_text(SCENARIO + "".join(TABLE.format(place=place) for place in range(4)))
    code = cli.run(["run", str(scenario), "--testbed", SHAPE, "--rate", RATE, "--steps", str(STEPS), "--json"])
    out, err = capfd.readouterr()
    assert code == 0, err
    told = json.loads(out)
    measured, predicted = told["measured"]["collectives"], told["predicted"]["collectives"]
    assert [row["name"] for row in measured] == [row["name"] for row in predicted]
    for mine, theirs in zip(measured, predicted, strict=True):
        assert mine["max_bytes_out"] == pytest.approx(theirs["max_bytes_out"], rel=0.2), mine["name"]
    crossed = STEPS * sum(row["max_bytes_out"] for row in measured) - 3 * link.burst_bytes
    assert crossed > 0
    assert sum(told["measured"]["step_times_s"]) >= crossed / link.rate_bytes_per_s
