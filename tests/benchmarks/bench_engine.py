"""Engine time of whole steps: what `make bench` shows. Never part of the tests, since machines differ."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.step.prediction import Prediction, simulate_program

CASES = {
    "64 ranks, global sharding": ("cluster.nodes=8",),
    "64 ranks, 2D in groups of 8": ("cluster.nodes=8", "layout.sharding_group_size=8"),
    "1,024 ranks, global, uneven traffic": ("cluster.nodes=128", "execution.routing=sampled", "workload.batch_size=64"),
    "1,024 ranks, 2D in groups of 8": ("cluster.nodes=128", "layout.sharding_group_size=8"),
    "2,048 ranks, global sharding": ("cluster.nodes=256",),
    "16,384 ranks, 2D in groups of 8": ("cluster.nodes=2048", "layout.sharding_group_size=8"),
}


@pytest.mark.parametrize("case", CASES)
def test_engine_time_of_a_step(benchmark: Any, case: str) -> None:
    """One steady-state step with its warm-up; the scenario is resolved and routed beforehand."""
    prediction = Prediction(read_scenario("mlperf-dcnv2-p5", CASES[case]))
    program = prediction.program(None)
    trace = benchmark.pedantic(simulate_program, args=(program, prediction.cluster), rounds=3, warmup_rounds=1)
    benchmark.extra_info["events per step"] = trace.events / (program.warmup_steps + 1)
    benchmark.extra_info["peak memory so far, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
