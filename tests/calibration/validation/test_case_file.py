"""Measured cases on file: what was whole is read again, what was cut off is not, and seeds are kept apart."""

import pytest

from foreshard.calibration.validation.case_file import CaseFile
from foreshard.calibration.validation.records import MeasuredCase
from foreshard.topologies.errors import InputError


def case(name, seed=7):
    return MeasuredCase(
        name=name, round=0, seed=seed, step_time_s=0.1, low_s=0.09, high_s=0.2, stages_s={"batch_input": 1.0}
    )


@pytest.fixture
def file(tmp_path):
    return CaseFile(tmp_path / "steps.jsonl")


def test_no_file_is_no_case(file):
    file.begin()
    assert file.read(7) == []


def test_cases_are_read_as_they_were_added(file):
    file.add(case("a"))
    file.add(case("b"))
    assert file.read(7) == [case("a"), case("b")]


def test_cases_of_another_seed_are_others(file):
    file.add(case("a", seed=7))
    file.add(case("a", seed=8))
    assert file.read(8) == [case("a", seed=8)]


def test_after_an_interrupted_line_the_next_case_has_its_own(file):
    file.add(case("a"))
    file.path.write_bytes(file.path.read_bytes() + b'{"name": "b", "rou')
    assert file.read(7) == [case("a")]
    file.begin()
    file.add(case("c"))
    assert file.read(7) == [case("a"), case("c")]


def test_another_file_is_refused_with_its_line(file):
    file.add(case("a"))
    file.path.write_bytes(file.path.read_bytes() + b"[1, 2]\n")
    with pytest.raises(InputError, match="line 2 is no measured case"):
        file.read(7)
