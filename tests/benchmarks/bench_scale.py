"""Whole reports and steps at scale, each in a process of its own: seconds with the start, and the peak of memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

STEP = """
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.step.prediction import Prediction
Prediction(read_scenario("mlperf-dcnv2-p5", {overrides})).trace
"""
REPORT = """
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.results.report import report
from foreshard.simulator.step.prediction import Prediction
report(Prediction(read_scenario("mlperf-dcnv2-p5", {overrides}))).to_text()
"""
PEAK = """
import resource
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
LAYOUTS = {
    "2,048 ranks, global sharding": ["cluster.nodes=256"],
    "2,048 ranks, 2D in groups of 8": ["cluster.nodes=256", "layout.sharding_group_size=8"],
    "16,384 ranks, global sharding": ["cluster.nodes=2048"],
    "16,384 ranks, 2D in groups of 8": ["cluster.nodes=2048", "layout.sharding_group_size=8"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("what", ["step", "report"])
def test_bench_in_a_process_of_its_own(benchmark: Any, what: str, layout: str) -> None:
    """Wanted: a whole step of 2,048 ranks in 2 s, of 16,384 in 20 s and 8 GiB."""
    code = {"step": STEP, "report": REPORT}[what].format(overrides=LAYOUTS[layout]) + PEAK
    peaks: list[int] = []

    def run() -> None:
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout))

    benchmark.pedantic(run, rounds=2)
    benchmark.extra_info["peak memory, MiB"] = max(peaks) // 1024
    print(f"\n{what}, {layout}: peak memory {max(peaks) // 1024:,} MiB")
