"""What a run really sends is what the program says: operations in order, groups, kinds, and bytes from rank to rank."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foreshard.calibration.runner.interpreter import run_program
from foreshard.calibration.runner.settings import RunSettings
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.scenario import Comms
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cluster import Cluster


def collectives(program):
    return [op for op in program.ops if isinstance(op.work, Collective)]


def expected(op, rank):
    """(Sent, received) by each member of an all_to_all, or the size of any other kind, in the rank's group."""
    group, here = int(op.work.groups.group_of[rank]), int(op.work.groups.position_of[rank])
    if op.work.kind == "all_to_all":
        pairs = op.work.traffic_of(group)
        return pairs.row(here), pairs.transposed().row(here)
    return op.work.nbytes_of(group)


def assert_moves_what_the_program_says(ranks, program):
    for rank, one in enumerate(ranks):
        moved = {(name, step): rest for name, step, *rest in one["moved"]}
        for op in collectives(program):
            wanted = expected(op, rank)
            found = moved.get((op.name, -op.batch))  # the step in which it works on batch 0, which is the one counted
            if found is None:
                assert op.work.kind != "all_to_all", op.name
                assert wanted == 0, f"{op.name} was left out on rank {rank}"
                continue
            kind, sent, received, nbytes = found
            assert kind == op.work.kind, op.name
            if kind == "all_to_all":
                np.testing.assert_allclose(sent, wanted[0], rtol=1e-12, err_msg=f"{op.name} from rank {rank}")
                np.testing.assert_allclose(received, wanted[1], rtol=1e-12, err_msg=f"{op.name} to rank {rank}")
            else:
                assert nbytes == pytest.approx(wanted, rel=1e-12), f"{op.name} on rank {rank}"


def assert_runs_in_the_programs_order(ranks, program):
    for one in ranks:
        for step in {step for step, _ in one["order"]}:
            run = [name for at, name in one["order"] if at == step]
            assert run == [op.name for op in program.ops if op.name in set(run)]


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_peer_gets_the_bytes_of_the_program(pool, jobs, data):
    """For the batch that the prediction counts, in every sharding, layout and pipeline, vectors of any width."""
    job = data.draw(jobs(exact=False))
    widths = st.sampled_from(["fp32", "fp16", "bf16"])
    comms = Comms(forward=data.draw(widths), backward=data.draw(widths))
    job = replace(job, scenario=replace(job.scenario, comms=comms))
    ranks = pool.run(job.scenario, job.cluster, RunSettings(), 1)
    program = run_program(Prediction(job.scenario, Cluster(job.cluster)))
    layout = job.scenario.layout
    if layout.sync_interval > 1:  # the first step of two does not synchronise
        program = Prediction(job.scenario, Cluster(job.cluster)).program(None)
    assert_moves_what_the_program_says(ranks, program)
    assert_runs_in_the_programs_order(ranks, program)


@pytest.mark.parametrize("dedup", [False, True])
@pytest.mark.parametrize("precision", ["fp8", "int8"])
def test_scales_travel_with_their_vectors(pool, all_kinds, precision, dedup):
    """Row-wise formats send a scale for every vector, and 16 bits where vectors are summed on the way."""
    job = all_kinds(dedup=dedup)
    job = replace(job, scenario=replace(job.scenario, comms=Comms(forward=precision, backward=precision)))
    ranks = pool.run(job.scenario, job.cluster, RunSettings(), 1)
    program = Prediction(job.scenario, Cluster(job.cluster)).program(None)
    assert_moves_what_the_program_says(ranks, program)
    assert_runs_in_the_programs_order(ranks, program)


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist"])
def test_every_step_runs_the_whole_program(pool, all_kinds, pipeline):
    """The pipeline is full in the first step and in the last: no step leaves out an operation that moves anything."""
    job = all_kinds(pipeline=pipeline)
    ranks = pool.run(job.scenario, job.cluster, RunSettings(), 3)
    program = run_program(Prediction(job.scenario, Cluster(job.cluster)))
    for rank, one in enumerate(ranks):
        whole = [op.name for op in program.ops if not isinstance(op.work, Collective) or np.any(expected(op, rank))]
        for step in range(3):
            assert [name for at, name in one["order"] if at == step] == whole
