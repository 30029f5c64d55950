"""The configurations of a validation: enough of them, alike on every rank, all of which can be run."""

from dataclasses import replace

import pytest

from foreshard.calibration.runner.interpreter import run_program
from foreshard.calibration.runner.refusals import refusals
from foreshard.calibration.runner.settings import RunSettings
from foreshard.calibration.runner.stand_in import host_of
from foreshard.calibration.testbed.shape import parse_shape
from foreshard.calibration.validation.cases import cases_of
from foreshard.simulator.step.prediction import Prediction

SHAPES = ("2x2", "2x1", "4x1")


def test_the_default_testbeds_have_at_least_24_configurations():
    assert sum(len(cases_of(parse_shape(shape), 1, 7)) for shape in ("2x2", "2x2", "4x1", "2x1")) >= 24


@pytest.mark.parametrize("shape", SHAPES)
def test_names_are_unique_and_the_same_every_time(shape):
    names = [case.name for case in cases_of(parse_shape(shape), 3, 7)]
    assert len(set(names)) == len(names)
    assert names == [case.name for case in cases_of(parse_shape(shape), 3, 7)]


@pytest.mark.parametrize("shape", ["2x1", "4x1"])
def test_every_case_has_a_program_and_nothing_that_the_runner_refuses(shape):
    ranks = parse_shape(shape).world_size
    for case in cases_of(parse_shape(shape), 3, 7):
        scenario = replace(case.scenario, cluster=replace(case.scenario.cluster, file=None, preset="cpu-host"))
        assert not list(refusals(scenario, RunSettings()))
        assert run_program(Prediction(scenario, host_of(ranks))).ops
