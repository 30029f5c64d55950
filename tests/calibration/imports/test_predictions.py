"""Predictions from imported rows: measured points come back, and between them time grows with size."""

from __future__ import annotations

import numpy as np
import pytest

from foreshard.simulator import load_scenario
from foreshard.simulator.comms.measured_times import MeasuredCollectives
from foreshard.simulator.comms.single import uniform_collective
from foreshard.simulator.measured.profile_file import save_profile
from foreshard.simulator.results.profile_use import profile_use
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.presets import load_preset

from .writing import log_text, published

CASES = [("collectives_p5.csv", "p5.48xlarge"), ("collectives_a100x8.csv", "p4d.24xlarge")]


@pytest.fixture(params=CASES, ids=["p5", "a100"])
def machine(request, tmp_path, profile_of):
    """Published rows as logs, their profile, and the machine."""
    name, preset = request.param
    rows = published(name)
    files = []
    for (kind, nodes, ranks), points in rows.items():
        path = tmp_path / f"{kind}-{nodes}.log"
        path.write_text(log_text(kind, ranks, points, per_node=ranks // nodes))
        files.append(path)
    return rows, profile_of(*files), preset


def seconds(profile, cluster, kind, nbytes):
    (timed,) = MeasuredCollectives(profile).times(cluster, uniform_collective(kind, range(cluster.size), nbytes))
    assert timed is not None
    return timed.seconds


def test_a_measured_point_is_predicted_as_measured(machine):
    """Every published row comes back to the digits that logs print, unless a larger size took less time."""
    rows, profile, preset = machine
    for (kind, nodes, _), points in rows.items():
        cluster = load_preset(preset, nodes)
        times = [time for _, time in points]
        exact = [
            place
            for place, time in enumerate(times)
            if all(before <= time for before in times[:place]) and all(after >= time for after in times[place:])
        ]
        assert len(exact) > len(points) / 2
        for nbytes, time in (points[place] for place in exact):
            assert seconds(profile, cluster, kind, nbytes) == pytest.approx(time, abs=0.006e-6)


def test_between_points_time_grows_with_size_and_stays_between_them(machine):
    """More bytes never take less, and nothing overshoots its neighbours."""
    rows, profile, preset = machine
    for (kind, nodes, _), points in rows.items():
        cluster = load_preset(preset, nodes)
        sizes = np.geomspace(points[0][0], points[-1][0], 60)
        times = np.array([seconds(profile, cluster, kind, nbytes) for nbytes in sizes.tolist()])
        assert (np.diff(times) >= -1e-12).all()
        assert times.min() >= min(time for _, time in points) * (1 - 1e-3)
        assert times.max() <= max(time for _, time in points) * (1 + 1e-3)


def test_a_step_takes_imported_collectives_and_says_so(machine, tmp_path):
    """With the profile in a scenario, measured shapes are named, others modelled, and sizes outside of it told."""
    rows, profile, preset = machine
    path = tmp_path / "imported.json"
    save_profile(profile, path)
    _, nodes, _ = next(key for key in rows if key[0] == "all_to_all")
    scenario = load_scenario(
        "mlperf-dcnv2-p5",
        [f"cluster.preset={preset}", f"cluster.nodes={nodes}", f"cluster.profile={path}", "workload.batch_size=256"],
    )
    use = profile_use(Prediction(scenario, Prediction(scenario).cluster))
    by_name = {curve.collective.split()[0]: curve for curve in use.collectives}
    assert by_name["all_to_all"].curve == by_name["all_to_all"].collective
    assert any(sentence.startswith("all_to_all") for sentence in use.below())
    assert any("reduce_scatter" in words for words in use.modelled)
    assert use.draws == 0  # means alone know no spread, so there is no interval
    assert any("count it as exact" in note for origin in use.provenance for note in origin.notes)
