"""Fits of work find the costs that made the times, and say how far off they are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.calibration.measure.device_profile import work_text
from foreshard.calibration.measure.device_records import DeviceFile, DeviceSettings, WorkRecord, of_cores
from foreshard.calibration.measure.work_fit import fit_work
from foreshard.simulator.job.work import FEATURES
from foreshard.simulator.measured.fits import fitted_seconds
from foreshard.topologies.errors import InputError


def _records(kinds, seconds_of, jobs, seed=0, noise=0.0, rank_slower=0.0):
    draw = np.random.default_rng(seed)
    for job in range(jobs):
        works = tuple(
            (kind, {name: 1.0 if name == "calls" else float(10 ** draw.uniform(2, 6)) for name in FEATURES[kind]})
            for kind in kinds
        )
        for rank in range(2):
            times = seconds_of(dict(works)) * np.exp(noise * draw.standard_normal(9)) * (1 + rank * rank_slower)
            yield WorkRecord(job=job, op="+".join(kinds), works=works, times_s=tuple(times.tolist()))


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-6, 1e-3), st.floats(1e-11, 1e-8), st.integers(0, 99))
def test_noiseless_times_of_a_linear_cost_are_found_again(call_s, byte_s, seed):
    records = list(_records(["join"], lambda w: call_s + byte_s * w["join"]["bytes"], 24, seed))
    (fit,) = fit_work(records)
    for record in records:
        counts = {name: np.array([count]) for name, count in record.works[0][1].items()}
        assert fitted_seconds(fit, counts)[0] == pytest.approx(record.times_s[0], rel=0.02)
    assert max(map(abs, fit.residuals)) < 0.02


def test_kinds_that_an_operation_does_together_share_its_time():
    def both(works):
        return 2e-9 * works["clear"]["bytes"] + 5e-8 * works["sum_by_row"]["lookups"]

    def alone(works):
        return 5e-8 * works["sum_by_row"]["lookups"]

    records = [*_records(["clear", "sum_by_row"], both, 30), *_records(["sum_by_row"], alone, 30, seed=1)]
    fits = {fit.kind: fit for fit in fit_work(records)}
    assert dict(zip(fits["clear"].features, fits["clear"].coefficients, strict=True))["bytes"] == pytest.approx(
        2e-9, rel=0.05
    )
    assert dict(zip(fits["sum_by_row"].features, fits["sum_by_row"].coefficients, strict=True))[
        "lookups"
    ] == pytest.approx(5e-8, rel=0.05)


def test_no_coefficient_is_negative_and_residuals_widen_with_noise():
    still, loud = (
        fit_work(_records(["recat"], lambda w: 1e-4 + 1e-8 * w["recat"]["ids"], 30, noise=noise))[0]
        for noise in (0.01, 0.6)
    )
    assert all(slope >= 0 for fit in (still, loud) for slope in fit.coefficients)
    assert loud.residuals[-2] - loud.residuals[1] > 3 * (still.residuals[-2] - still.residuals[1])


def test_an_operation_that_all_ranks_do_takes_what_the_rank_in_the_middle_takes():
    (fit,) = fit_work(_records(["issue"], lambda _: 1e-4, 5, rank_slower=0.5))
    assert [point.median_s for point in fit.points] == pytest.approx([1.5e-4] * 5)


def test_the_table_tells_how_far_measured_lies_from_fitted_as_a_share():
    """Residuals are logarithms: half the fit is -50 %, twice the fit +100 %."""
    fit = fit_work(_records(["issue"], lambda _: 1e-4, 5))[0]
    half, twice = np.log([0.5, 2.0]).tolist()
    told = work_text([replace(fit, residuals=(2 * half, half, 0.0, 0.0, 0.0, twice, 2 * twice))])
    assert "-50.0% to +100.0%" in told


def _settings(seed=0):
    return DeviceSettings(
        backend="gloo", device="cpu", device_name="a core", hardware="a host", versions={}, node_of=(0, 0, 1),
        optimizer="sgd", seed=seed,
    )  # fmt: skip


def test_finished_jobs_survive_an_interrupted_last_line(tmp_path):
    file = DeviceFile(tmp_path / "work")
    assert file.begin(_settings()) == set()
    for job in (0, 1):
        file.add([record for record in _records(["issue"], lambda _: 1e-4, 2) if record.job == job])
    file.path.write_bytes(file.path.read_bytes()[:-9])
    assert DeviceFile(file.path).begin(_settings()) == {0}
    assert {record.job for record in file.read()[1]} == {0}


def test_a_file_of_other_settings_is_refused(tmp_path):
    file = DeviceFile(tmp_path / "work")
    file.begin(_settings())
    with pytest.raises(InputError, match="other options"):
        file.begin(_settings(seed=1))


def test_ranks_of_each_node_are_counted_largest_first():
    assert _settings().ranks_per_node == (2, 1)


def test_slices_lost_to_other_ranks_are_spread_over_all_that_a_thread_did():
    """Two operations of 1 s and 3 s with a core, one of which lost 4 s: each takes twice as long, in any step."""
    host_s, cpu_s = np.array([[5.0, 3.0], [1.0, 7.0]]), np.array([[1.0, 3.0], [1.0, 3.0]])
    np.testing.assert_allclose(of_cores(host_s, cpu_s), [[2.0, 6.0], [2.0, 6.0]])


def test_operations_that_never_ran_stay_out_of_the_shares():
    host_s, cpu_s = np.array([[4.0, np.nan]]), np.array([[2.0, np.nan]])
    np.testing.assert_allclose(of_cores(host_s, cpu_s), [[4.0, np.nan]])
