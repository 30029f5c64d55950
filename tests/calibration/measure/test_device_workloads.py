"""Jobs that calibrate a device are drawn anew from a seed, fit a small machine, and make every kind of work."""

import pytest

from foreshard.calibration.measure.device_workloads import drawn_scenarios
from foreshard.calibration.runner.interpreter import run_program
from foreshard.calibration.runner.refusals import refusals
from foreshard.calibration.runner.settings import RunSettings
from foreshard.calibration.runner.stand_in import host_of
from foreshard.simulator.job.program import Compute
from foreshard.simulator.step.prediction import Prediction


def _drawn(count=32, ranks=2, seed=0):
    return drawn_scenarios(count, ranks, optimizer="rowwise_adagrad", seed=seed)


def test_the_same_seed_draws_the_same_jobs_and_another_seed_others():
    assert _drawn() == _drawn()
    assert _drawn() != _drawn(seed=1)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_job_can_be_run_and_is_small(ranks):
    for scenario in _drawn(ranks=ranks):
        assert not list(refusals(scenario, RunSettings()))
        tables = scenario.workload.tables
        ids = scenario.workload.batch_size * sum(table.ids_per_sample for table in tables)
        assert ids <= 400_000
        assert sum(table.nbytes for table in tables) <= 4 * 33_000_000


def test_every_kind_of_work_of_an_embedding_step_is_measured():
    cluster, found = host_of(2), set()
    for scenario in _drawn(16):
        for op in run_program(Prediction(scenario, cluster)).ops:
            found |= {work.kind for work in op.work.works} if isinstance(op.work, Compute) else set()
    assert found >= {
        "copy_in", "permute", "recat", "dedup", "from_distinct", "to_distinct", "lookup", "update", "sum_by_row",
        "join", "encode", "decode", "dense_forward", "dense_backward", "dense_optimizer", "replica_update", "clear",
    }  # fmt: skip
