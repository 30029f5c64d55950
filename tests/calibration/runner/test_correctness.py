"""Training over two to four processes gives what one process gives on whole tables, whatever plan and layout."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from foreshard.calibration.runner.dense_reference import DenseReference
from foreshard.calibration.runner.settings import RunSettings
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cluster import Cluster

from .comparing import EXACT, assert_close, assert_equal

# Relative to the largest value of its kind. fp32: sums of some hundred terms in another order, each off by 2^-24, which
# AdaGrad's first steps pass on whole. 16-bit rows are rounded after each of two steps: a unit where the two fall on
# either side of a middle.
ROUNDING = {"fp32": 2e-5, "fp16": 2 * 2**-10, "bf16": 2 * 2**-7}
# Encoded vectors and gradients: a unit of the format, several where partial pools are summed on the way, and once more
# where a second step starts from rows that differ.
CODEC = {"fp16": 8 * 2**-10, "bf16": 8 * 2**-7, "fp8": 2**-2, "int8": 8 / 255}


def in_one_process(job, run, steps):
    reference = DenseReference(Prediction(job.scenario, Cluster(job.cluster)), run)
    for _ in range(steps):
        reference.step()
    return reference


def largest(reference, job):
    """The largest magnitude of anything that the reference computed."""
    ranks = sum(group.nodes * len(group.node.gpus) for group in job.cluster.groups)
    names = [table.name for table in job.scenario.workload.tables]
    tables = [reference.copy_of(name, rank).weights.numpy() for name in names for rank in range(ranks)]
    vectors = [one for each in reference.vectors for one in each]
    return max(np.abs(one).max(initial=0) for one in (*tables, *vectors, reference.dense.numpy(), reference.losses))


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whole_numbers_are_trained_bit_for_bit(pool, jobs, data):
    """With SGD and whole numbers the sharded run equals one process exactly: every sharding, layout and pipeline."""
    job, steps = data.draw(jobs(exact=True)), data.draw(st.integers(1, 3))
    run = RunSettings(exact=True, keep_vectors=True, batches=2)
    reference = in_one_process(job, run, steps)
    assume(largest(reference, job) < EXACT)
    assert_equal(pool.run(job.scenario, job.cluster, run, steps), reference)


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_training_follows_one_process(pool, jobs, data):
    """With fractions, rows of every format and every optimizer it follows one process up to rounding."""
    job = data.draw(jobs(exact=False))
    near = max(ROUNDING[table.data_type] for table in job.scenario.workload.tables)
    run = RunSettings(keep_vectors=True, batches=2)
    assert_close(pool.run(job.scenario, job.cluster, run, 2), in_one_process(job, run, 2), lambda _: near)


@pytest.mark.parametrize("dedup", [False, True])
@pytest.mark.parametrize("precision", list(CODEC))
def test_codecs_round_and_nothing_else(pool, all_kinds, precision, dedup):
    """With encoded vectors and gradients loss, vectors and rows of all kinds stay within the codec's rounding."""
    job = all_kinds(optimizer="sgd", dedup=dedup)
    comms = replace(job.scenario.comms, forward=precision, backward=precision)
    job = replace(job, scenario=replace(job.scenario, comms=comms))
    run = RunSettings(keep_vectors=True)
    assert_close(pool.run(job.scenario, job.cluster, run, 2), in_one_process(job, run, 2), lambda _: CODEC[precision])
