"""Links measured in beds: what collectives put on interfaces is what the model says, and nothing is measured twice."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec

import msgspec
import numpy as np
import pytest

from foreshard.calibration.measure.link_model import modelled_wire
from foreshard.calibration.measure.link_plan import LinkPlan
from foreshard.calibration.measure.link_records import RecordFile
from foreshard.calibration.measure.links_worker import WorkerOptions
from foreshard.calibration.testbed.bed import Testbed
from foreshard.simulator.measured.profile_file import read_profile
from foreshard.topologies import cli

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow,
    pytest.mark.usefixtures("can_build"),
    pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch"),
]

# One size, large enough that headers do not count, as quickly as can be.
PLAN = LinkPlan(smallest=3 << 20, largest=3 << 20, point_s=1e-3, least_runs=1)


def measure(shape, file, plan=PLAN):
    options = msgspec.json.encode(WorkerOptions(plan=plan)).decode()
    command = [sys.executable, "-m", "foreshard.calibration.measure.links_worker", str(file), options]
    with Testbed(shape, "2 Gbit/s") as bed:
        results = bed.run(command, timeout_s=300, capture=True)
    assert [result.exit_code for result in results] == [0] * len(results), results
    return RecordFile(file).read()


@pytest.mark.parametrize("shape", ["2x2", "3x1", "2+1"])
def test_the_model_moves_the_bytes_that_interfaces_count(shape, tmp_path):
    """Every collective of every group shape: sent and received by each node, and looped inside it, within 2 %."""
    settings, records = measure(shape, tmp_path / "links")
    counted = [record for record in records if record.wire is not None]
    assert {record.kind for record in counted} == set(PLAN.kinds)
    for record in counted:
        modelled = modelled_wire(settings, record)
        for name in ("sent", "received", "looped"):
            measured, expected = getattr(record.wire, name), getattr(modelled, name)
            np.testing.assert_allclose(measured, expected, rtol=0.02, atol=0.02 * record.nbytes, err_msg=str(record))


def test_finished_points_are_not_measured_again(tmp_path):
    """All but two points are in the file, with times that no machine has: these stay, only two are new."""
    plan = replace(PLAN, kinds=("all_gather", "broadcast"))
    file = tmp_path / "links"
    settings, records = measure("2x1", file, plan)
    (file).unlink()
    kept = RecordFile(file)
    kept.begin(settings)
    for record in records[:-2]:
        kept.add(replace(record, times_s=(1e-9,)))
    _, again = measure("2x1", file, plan)
    assert [record.key for record in again] == [record.key for record in records]
    assert [record.times_s == (1e-9,) for record in again] == [True] * (len(records) - 2) + [False] * 2


def test_the_command_measures_in_a_bed(tmp_path, capsys):
    """The profile knows the bed, and the tables are printed."""
    path = tmp_path / "bed.json"
    quick = ["--smallest", "16 KiB", "--largest", "16 KiB", "--point-time", "10 ms", "--kinds", "all_gather"]
    assert cli.run(["calibrate", "links", "-o", str(path), "--testbed", "2x1", "--rate", "2 Gbit/s", *quick]) == 0
    profile = read_profile(path)
    assert "testbed 2x1, 2000 Mbit/s" in profile.provenance[0].hardware
    assert profile.ranks_per_node == (1, 1)
    assert "all_gather, 1+1 ranks" in capsys.readouterr().out
