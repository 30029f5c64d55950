"""What the runner cannot run is told before anything begins."""

from foreshard.calibration.runner.refusals import refusals
from foreshard.calibration.runner.settings import RunSettings
from foreshard.simulator.files.reading import read_scenario


def test_all_to_alls_in_two_steps_are_predicted_and_not_run():
    plain = read_scenario("mlperf-dcnv2-p5")
    two = read_scenario("mlperf-dcnv2-p5", ["comms.all_to_all=hierarchical"])
    assert list(refusals(plain, RunSettings())) == []
    assert list(refusals(two, RunSettings())) == [
        "comms.all_to_all = 'hierarchical' is predicted, not run: use pairwise"
    ]
