"""What becomes a record of work: a rank's own counts and times, and of collectives the time to issue them."""

from __future__ import annotations

import numpy as np
import pytest

from foreshard.calibration.measure.device_records import records_of
from foreshard.calibration.runner.interpreter import run_program
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.program import Collective, Compute
from foreshard.simulator.step.prediction import Prediction


@pytest.fixture(scope="module")
def program():
    return run_program(Prediction(read_scenario("host-4ranks", ["cluster.preset=cpu-host"])))


def times_of(program):
    """(Seconds of operations, of issuing them) in two steps: operation i takes i + 1 and i + 1.5."""
    numbers = np.arange(1.0, len(program.ops) + 1)
    return np.stack([numbers, numbers + 0.5]), np.stack([numbers / 100, numbers / 200])


def test_records_have_the_counts_of_their_rank_and_the_times_of_all_steps(program):
    took, host = times_of(program)
    for rank in (0, 3):
        found = {record.op: record for record in records_of(7, program, rank, took, host)}
        for index, op in enumerate(program.ops):
            if isinstance(op.work, Collective):
                assert found[op.name].works == (("issue", {"calls": 1.0}),)
                assert found[op.name].times_s == (host[0, index], host[1, index])
            elif op.name in found:
                assert found[op.name].times_s == (took[0, index], took[1, index])
                counts = dict(found[op.name].works)
                for work in (one for one in op.work.works if one.kind in counts):
                    assert counts[work.kind] == {name: values[rank] for name, values in work.counts.items()}
        assert {record.job for record in found.values()} == {7}


def test_ranks_differ_in_what_they_did(program):
    """Tables 0 to 3 are whole on a rank each, so that ids come in other numbers."""
    took, host = times_of(program)
    first, last = ({one.op: one.works for one in records_of(0, program, rank, took, host)} for rank in (0, 3))
    assert first["lookup.table_wise"] != last["lookup.table_wise"]


@pytest.mark.parametrize("missing", [np.nan, 0.0])
def test_an_operation_without_a_time_in_some_step_is_left_out(program, missing):
    took, host = times_of(program)
    index = next(i for i, op in enumerate(program.ops) if isinstance(op.work, Compute) and op.name == "forward")
    took[1, index] = missing
    assert "forward" not in {record.op for record in records_of(0, program, 0, took, host)}
