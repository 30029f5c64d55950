"""Every sharding kind in every layout, pipeline and with every optimizer, against the dense reference."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from foreshard.calibration.runner.dense_reference import DenseReference
from foreshard.calibration.runner.settings import RunSettings
from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.scenario import Comms, Execution
from foreshard.simulator.job.workload import Replay
from foreshard.simulator.lookups.batch_files import write_batch
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cluster import Cluster

from .comparing import assert_close, assert_equal, assert_every_element_once
from .scenarios import PLACINGS, every_kind

torch.set_num_threads(1)  # tensors are tiny: more threads only wait for each other

WHOLE = RunSettings(exact=True, keep_vectors=True, batches=2)
FRACTIONS = RunSettings(embedding_learning_rate=0.05, keep_vectors=True, batches=2)

# Sums of at most a hundred float32 terms in another order: 100 x 2^-24 of the largest. AdaGrad and Adam divide a
# gradient by its own size in their first steps, so that a row moves by the relative error of its gradient.
FLOAT = 2e-5


def trained(pool, cluster_of, scenario, placing, run, steps=3):
    """(What every rank has, the reference, the prediction)."""
    spec = cluster_of(PLACINGS[placing].nodes, PLACINGS[placing].ranks)
    prediction = Prediction(scenario, Cluster(spec))
    reference = DenseReference(prediction, run)
    for _ in range(steps):
        reference.step()
    return pool.run(scenario, spec, run, steps), reference, prediction


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist"])
@pytest.mark.parametrize("placing", PLACINGS)
def test_whole_numbers_are_equal_bit_for_bit(pool, cluster_of, placing, pipeline):
    """Sums, halves and whole steps round nowhere, in whatever order they are taken."""
    scenario = every_kind(placing, Execution(pipeline=pipeline, optimizer="sgd"))
    answers, reference, prediction = trained(pool, cluster_of, scenario, placing, WHOLE)
    assert_equal(answers, reference)
    assert_every_element_once(answers, prediction)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here: kernels cannot be compiled for the CPU")
@pytest.mark.parametrize("placing", ["global", "contiguous, weights", "groups of 3 and 1, gradients"])
def test_the_cuda_kernels_train_the_same(pool, cluster_of, placing):
    """The runner on the CUDA sources, compiled for the CPU: every sharding kind, fused updates, sums for replicas."""
    scenario = every_kind(placing, Execution(optimizer="sgd", pipeline="sparse_dist"))
    spec = cluster_of(PLACINGS[placing].nodes, PLACINGS[placing].ranks)
    reference = DenseReference(Prediction(scenario, Cluster(spec)), WHOLE)
    for _ in range(2):
        reference.step()
    assert_equal(pool.run(scenario, spec, WHOLE, 2, kernels=True), reference)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad", "adam"])
@pytest.mark.parametrize(
    "placing",
    ["global", "contiguous, weights every 2nd step", "interleaved, fully sharded", "groups of 3 and 1, gradients"],
)
def test_every_optimizer_follows_the_reference(pool, cluster_of, placing, optimizer):
    scenario = every_kind(placing, Execution(pipeline="sparse_dist", optimizer=optimizer, seed=3))
    answers, reference, _ = trained(pool, cluster_of, scenario, placing, FRACTIONS)
    assert_close(answers, reference, lambda _: FLOAT)


@pytest.mark.parametrize("placing", ["global", "contiguous, gradients", "groups of 3 and 1, weights"])
def test_deduplicated_ids_train_the_same(pool, cluster_of, placing):
    """Whether a rank exchanges every id or each distinct one once changes nothing that is trained."""
    plain = every_kind(placing, Execution(optimizer="sgd", pipeline="sparse_dist"))
    dedup = replace(plain, execution=replace(plain.execution, dedup=True))
    answers, reference, _ = trained(pool, cluster_of, dedup, placing, WHOLE)
    assert_equal(answers, reference)
    assert_equal(pool.run(plain, cluster_of(PLACINGS[placing].nodes, PLACINGS[placing].ranks), WHOLE, 3), reference)


def test_weights_of_a_recorded_trace_multiply_the_vectors_of_pooled_tables(pool, cluster_of, tmp_path):
    """Two samples a rank of weighted ids, halves so that every sum is exact; sequences take no weights."""
    scenario = every_kind("global", Execution(optimizer="sgd"))
    features = tuple(name for table in scenario.workload.tables for name in table.features)
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 3, (len(features), 4 * scenario.workload.batch_size))
    ids = int(lengths.sum())
    batch = JaggedBatch(
        features=features,
        lengths=lengths,
        values=rng.integers(0, 9, ids),
        weights=rng.choice([-1.0, -0.5, 0.5, 1.0, 2.0], ids),
    )
    write_batch(batch, tmp_path / "trace.npz")
    workload = replace(scenario.workload, replay=Replay(file=str(tmp_path / "trace.npz"), repeat=True))
    replayed = replace(scenario, workload=workload, execution=replace(scenario.execution, routing="replayed"))
    answers, reference, _ = trained(pool, cluster_of, replayed, "global", WHOLE, steps=2)
    assert_equal(answers, reference)


# One unit of the format, relative to the largest value of a vector, twice where a sum is rounded once more.
UNIT = {"fp16": 2**-11, "bf16": 2**-8, "fp8": 2**-3, "int8": 1 / 255}


WHOLE_VECTORS = ("table_wise", "column_wise", "table_column_wise")
PARTIAL_POOLS = ("row_wise", "table_row_wise", "grid_shard")


@pytest.mark.parametrize("precision", list(UNIT))
def test_vectors_that_travel_whole_are_rounded_as_the_codec_rounds(pool, cluster_of, precision):
    """Encoded by the owner, decoded by the batch owner, once: the first step's vectors are the round trip itself."""
    comms = Comms(forward=precision, backward=precision)
    scenario = every_kind("global", Execution(optimizer="sgd"), kinds=WHOLE_VECTORS, comms=comms)
    answers, reference, _ = trained(pool, cluster_of, scenario, "global", FRACTIONS, steps=1)
    plain = trained(pool, cluster_of, replace(scenario, comms=Comms()), "global", FRACTIONS, steps=1)[1]
    assert not np.array_equal(plain.vectors[0][0], reference.vectors[0][0])
    close = {"losses": 1e-6, "vectors": 0.0, "dense": FLOAT, "rows": FLOAT}
    assert_close(answers, reference, lambda pair: close[pair.kind])


@pytest.mark.parametrize("precision", list(UNIT))
def test_partial_pools_are_rounded_to_16_bits_on_their_way(pool, cluster_of, precision):
    """Four partial pools, each rounded, and their sums: off by four units of 16 bits at most, and by more than none."""
    comms = Comms(forward=precision)
    scenario = every_kind("one node", Execution(optimizer="sgd"), kinds=PARTIAL_POOLS, comms=comms)
    answers, reference, _ = trained(pool, cluster_of, scenario, "one node", FRACTIONS, steps=1)
    unit = UNIT["bf16" if precision == "bf16" else "fp16"]
    pooled = np.concatenate([[one.pooling != "none"] * width_of(one) for one in scenario.workload.tables])
    off = [np.abs(one["vectors"][0] - reference.vectors[0][rank])[:, pooled] for rank, one in enumerate(answers)]
    largest = max(np.abs(one[:, pooled]).max() for one in reference.vectors[0])
    assert 0 < max(each.max() for each in off) <= 4 * unit * largest


def width_of(table) -> int:
    return table.embedding_dim * len(table.features)
