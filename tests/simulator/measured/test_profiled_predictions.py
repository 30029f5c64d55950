"""Predictions with a profile: what it measured takes the place of the model, and reports say what it did not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.program import Collective, Compute
from foreshard.simulator.job.scenario import Constant
from foreshard.simulator.job.work import FEATURES, WORK_KINDS, WorkKind
from foreshard.simulator.measured.profile import CollectiveCurve, Profile, WorkFit, WorkPoint
from foreshard.simulator.measured.profile_file import save_profile
from foreshard.simulator.results.report import report
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cli import run
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import load_preset

Curves = Callable[..., CollectiveCurve]
Profiles = Callable[..., Profile]

TABLES = [
    {"name": name, "num_embeddings": 1000, "embedding_dim": 8, "pooling_factor": 4, "pooling": "sum"} for name in "ab"
]


def document(**cluster: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "cluster": {"preset": "cpu-host", "nodes": 1, **cluster},
        "workload": {"batch_size": 16, "tables": TABLES, "dense": {"layers": [[16, 8, 1]]}},
        "plan": {"default": "table_wise"},
        "comms": {"forward": "fp16"},
    }


def fit(kind: WorkKind, *, calls: float, **per: float) -> WorkFit:
    """Seconds a call, and seconds per count of other features."""
    slopes = {"calls": calls, **per}
    return WorkFit(kind=kind, features=tuple(slopes), coefficients=tuple(slopes.values()), residuals=())


def every_kind(seconds: float) -> tuple[WorkFit, ...]:
    return tuple(fit(kind, calls=seconds) for kind in WORK_KINDS)


def test_measured_work_takes_the_time_of_its_fit_and_the_rest_the_model(profile_of: Profiles) -> None:
    """Rows at 1 us each and a ms a call; the update, which nobody measured, as without a profile."""
    scenario = read_scenario(document())
    measured = Prediction(scenario, profile=profile_of(work=[fit("lookup", calls=1e-3, lookups=1e-6)]))
    modelled = Prediction(scenario)
    ops = {op.name: op for op in measured.program(None).ops}
    rows = measured.demand.families[0].local.lookups
    assert ops["lookup.table_wise"].work.seconds.tolist() == pytest.approx(((rows > 0) * 1e-3 + rows * 1e-6).tolist())
    as_before = {op.name: op for op in modelled.program(None).ops}["embedding_backward.table_wise"]
    here = ops["embedding_backward.table_wise"]
    assert here.work.seconds.tolist() == as_before.work.seconds.tolist()


def test_a_step_of_measured_parts_alone_is_their_sum(curve: Curves, profile_of: Profiles) -> None:
    """On one thread: all work a ms, all collectives nothing to speak of; so many ms as there is work."""
    curves = [curve(kind, (4,), {1.0: 1e-12}) for kind in ("all_to_all", "all_reduce", "all_gather", "reduce_scatter")]
    flat = [replace(one, points=(one.points[0], replace(one.points[0], nbytes=1e12))) for one in curves]
    work = [*every_kind(1e-3)[:-1], fit("issue", calls=1e-12)]
    prediction = Prediction(read_scenario(document()), profile=profile_of(*flat, work=work))
    busiest = sum(op.work.seconds.max() for op in prediction.program(None).ops if isinstance(op.work, Compute))
    assert prediction.step_time_s == pytest.approx(busiest, rel=1e-6)


def test_every_operation_counts_all_features_of_its_kind(profile_of: Profiles) -> None:
    """Whatever of them a fit uses is there, [ranks], finite and not negative."""
    wanted = {**document(), "execution": {"dedup": True}}
    seen = set()
    for changed in (document(), wanted, {**document(), "plan": {"default": "data_parallel"}}):
        prediction = Prediction(read_scenario(changed))
        for op in prediction.program(None).ops:
            for work in op.work.works if isinstance(op.work, Compute) else ():
                seen.add(work.kind)
                for name, counts in work.counts.items():
                    assert name in FEATURES[work.kind]
                    assert counts.shape == (4,)
                    assert np.isfinite(counts).all()
                    assert (counts >= 0).all()
                coded = ("bytes", f"{prediction.scenario.comms.forward}_elements", "calls")
                needed = coded if work.kind in ("encode", "decode") else FEATURES[work.kind]
                assert set(needed) <= set(work.counts)
    assert seen == set(WORK_KINDS) - {"issue", "pad", "replica_update"}


def test_a_fit_may_use_features_that_an_operation_does_not_have(profile_of: Profiles) -> None:
    """int8 elements of an operation that encodes to fp16: none."""
    codec = fit("encode", calls=0.0, fp16_elements=1e-9, int8_elements=1.0)
    program = Prediction(read_scenario(document()), profile=profile_of(work=[codec])).program(None)
    work = next(op.work.works[0] for op in program.ops if op.name.startswith("output_dist.encode"))
    assert work.seconds.tolist() == pytest.approx((work.counts["fp16_elements"] * 1e-9).tolist())


def test_on_cpus_measured_work_holds_the_calls_of_its_operators(profile_of: Profiles) -> None:
    """Modelled work costs its calls besides; an issued collective costs what was measured."""
    ops = Prediction(read_scenario(document()), profile=profile_of(work=every_kind(2e-3))).program(None).ops
    assert {op.host_s for op in ops if isinstance(op.work, Compute)} == {0.0}
    assert {op.host_s for op in ops if isinstance(op.work, Collective)} == {2e-3}
    assert all(op.host_s > 0 for op in Prediction(read_scenario(document())).program(None).ops)


def test_a_profile_replaces_constants_and_the_scenario_its_constants(profile_of: Profiles) -> None:
    """gloo_step_s by the profile; host_per_kernel by the scenario, which is asked for here and now."""
    measured = (
        Constant(name="gloo_step_s", value=7e-6, source="calibrated"),
        Constant(name="host_per_kernel", value=8e-6, source="calibrated"),
    )
    scenario = read_scenario({**document(), "constants": {"host_per_kernel": "9 us"}})
    prediction = Prediction(scenario, profile=profile_of(constants=measured))
    assert prediction.cluster.constant("gloo_step_s") == 7e-6
    assert prediction.costs["host_per_kernel"] == 9e-6


@pytest.fixture
def saved(tmp_path: Path, curve: Curves, profile_of: Profiles) -> Path:
    lookup = replace(
        fit("lookup", calls=1e-5, lookups=1e-9),
        points=(WorkPoint(counts=(1, 10), median_s=1e-4, low_s=1e-4, high_s=1e-4),),
    )
    small = curve("all_to_all", (4,), {1e3: 1e-3, 1.1e3: 1.1e-3}, spread=1.2)
    save_profile(profile_of(small, work=[lookup]), tmp_path / "here.json")
    return tmp_path / "here.json"


def test_a_scenario_names_its_profile_beside_itself(saved: Path) -> None:
    """A relative path is relative to the scenario's file, and stays when the scenario is written."""
    path = saved.parent / "job.toml"
    tables = "".join(f'[[workload.tables]]\nname = "{name}"\nnum_embeddings = 9\nembedding_dim = 4\n' for name in "ab")
    path.write_text(
        f'schema = 1\n[cluster]\npreset = "cpu-host"\nprofile = "here.json"\n[workload]\nbatch_size = 4\n{tables}'
    )
    scenario = read_scenario(path)
    assert scenario.cluster.profile == str(saved.resolve())
    assert Prediction(read_scenario(scenario)).profile is not None
    assert read_scenario(path, [f"cluster.profile={saved}"]) == scenario


@pytest.mark.parametrize(
    ("preset", "name", "told"),
    [
        ("cpu-host", "none.json", "no such file"),
        ("cpu-host", "a\0b", "no file has such a name"),
        ("pcie-4x", "here.json", "was measured with gloo, but 'pcie-4x' communicates with nccl"),
        ("pcie-4x", "here.json", "was measured on a core (cpu), but ranks of 'pcie-4x' are on GPUs"),
    ],
)
def test_a_profile_that_cannot_be_used_is_told_in_one_sentence(saved: Path, preset: str, name: str, told: str) -> None:
    """A missing file, another backend, another device: with the key that names it."""
    with pytest.raises(InputError) as caught:
        read_scenario(document(preset=preset, profile=str(saved.parent / name)))
    problems = [problem for problem in caught.value.problems if told in problem]
    assert len(problems) == 1
    assert problems[0].startswith("cluster.profile")


def test_work_of_another_gpu_is_refused_and_collectives_alone_are_not(curve: Curves, profile_of: Profiles) -> None:
    """H100 is not A100; B200 is not GB200."""
    gpu: dict[str, Any] = {"backend": "nccl", "device": "cuda", "device_name": "NVIDIA H100 80GB HBM3"}
    work = [fit("lookup", calls=1e-5)]
    on_a100 = read_scenario({**document(), "cluster": {"preset": "dgx-a100"}})
    with pytest.raises(InputError, match="its work was measured on NVIDIA H100 80GB HBM3, but 'dgx-a100' has A100"):
        _check(on_a100, profile_of(work=work, **gpu))
    _check(on_a100, profile_of(curve("all_to_all", (8,), {1e3: 1e-3}), **gpu))
    _check(read_scenario({**document(), "cluster": {"preset": "dgx-h100"}}), profile_of(work=work, **gpu))
    on_b200 = read_scenario({**document(), "cluster": {"preset": "p6-b200.48xlarge"}})
    with pytest.raises(InputError, match="GB200"):
        _check(on_b200, profile_of(work=work, **{**gpu, "device_name": "NVIDIA GB200"}))


def _check(scenario: Any, profile: Profile) -> None:
    from foreshard.simulator.step.profiles import check_profile

    check_profile(profile, load_preset(scenario.cluster.preset))


def test_a_constant_that_nobody_knows_is_refused(profile_of: Profiles) -> None:
    """With the name that was probably meant."""
    wrong = profile_of(constants=(Constant(name="gloo_steps", value=1.0, source="x"),))
    with pytest.raises(InputError, match="did you mean 'gloo_step_s'"):
        _check(read_scenario(document()), wrong)


def test_a_report_says_what_was_measured_what_was_not_and_what_lies_outside(saved: Path) -> None:
    """In its first lines, in a part of its own with the provenance, and in the JSON."""
    told = report(Prediction(read_scenario(document(profile=str(saved)))))
    text = told.to_text()
    assert "profile     here: measured 1 of 2 kinds and shapes of collectives, 1 of 11 kinds of work; 2 BEYOND" in text
    assert "Profile here: gloo, a core" in text
    assert "2025-01-02T03:04:05Z" in text
    assert "not measured, so modelled: all_reduce of 4 ranks; permute" in text
    assert "lookup: lookups outside the measured range by a factor of 26" in text
    assert "all_to_all of 4 ranks at 96 B: outside the measured range, from 1000 B, by a factor of 10" in text
    use = json.loads(json.dumps(told.to_dict()))["profile"]
    assert use["provenance"][0]["command"] == "foreshard calibrate"
    assert [work["kind"] for work in use["work"] if work["measured"]] == ["lookup"]
    assert any(item["name"] == "cluster.profile" for item in told.to_dict()["assumptions"])
    assert dict(told.provenance)["profile_sha256"]


def test_a_cpu_machine_without_a_profile_is_called_not_calibrated(capsys: pytest.CaptureFixture[str]) -> None:
    """In the report, in the explanation, and no interval is claimed."""
    prediction = Prediction(read_scenario(document()))
    told = report(prediction)
    assert "NOT CALIBRATED" in told.to_text()
    assert "interval" not in told.to_text()
    assert prediction.interval is None
    assert told.to_dict()["step_time_interval_s"] is None
    assert told.to_dict()["profile"] is None
    assert "NOT CALIBRATED" not in report(Prediction(read_scenario(document(preset="pcie-4x")))).to_text()


def test_an_explanation_says_where_its_times_are_from(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The profile with its command, date and hardware."""
    path = saved.parent / "job.toml"
    path.write_text(
        'schema = 1\n[cluster]\npreset = "cpu-host"\nprofile = "here.json"\n[workload]\nbatch_size = 4\n'
        '[[workload.tables]]\nname = "a"\nnum_embeddings = 9\nembedding_dim = 4\n'
    )
    assert run(["explain", str(path), "--table", "a", "--id", "1", "--rank", "0"]) == 0
    assert "profile 'here' where it measured, else the model (links: foreshard calibrate" in capsys.readouterr().out


def test_other_ranks_than_were_measured_are_noted(profile_of: Profiles) -> None:
    """Two ranks a node shared the cores, now it is four."""
    profile = profile_of(work=[fit("lookup", calls=1e-5)], ranks_per_node=(2, 2))
    text = report(Prediction(read_scenario(document(nodes=2)), profile=profile)).to_text()
    assert "work was measured with 2 ranks at a time in a node, but 4 share its cores here" in text
    assert "it was measured with 4 ranks in all, and 8 run here" in text
