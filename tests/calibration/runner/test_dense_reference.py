"""The dense reference against plain torch training, and what each way to synchronise replicas means, as rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from foreshard.calibration.runner.batches import rank_batch
from foreshard.calibration.runner.dense import DenseModel
from foreshard.calibration.runner.dense_reference import DenseReference
from foreshard.calibration.runner.initial import dense_inputs, labels
from foreshard.calibration.runner.settings import RunSettings
from foreshard.simulator.job.scenario import Comms
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cluster import Cluster

torch.set_num_threads(1)  # tensors are tiny: more threads only wait for each other

RUN = RunSettings(embedding_learning_rate=0.1, keep_vectors=True)


def reference_of(job, steps=2, run=RUN, **layout):
    scenario = replace(job.scenario, layout=replace(job.scenario.layout, **layout))
    reference = DenseReference(Prediction(scenario, Cluster(job.cluster)), run)
    for _ in range(steps):
        reference.step()
    return reference


def rows_of(job, reference, rank=0):
    return {table.name: reference.copy_of(table.name, rank).weights.numpy() for table in job.scenario.workload.tables}


def assert_close(left, right):
    for name, rows in left.items():
        np.testing.assert_allclose(rows, right[name], rtol=1e-5, atol=1e-6, err_msg=name)


class PlainModel(torch.nn.Module):
    """Embedding bags and the same dense layers, trained on the batches of all ranks as one."""

    def __init__(self, job, start):
        super().__init__()
        self.tables = torch.nn.ModuleDict(
            {
                name.replace(".", " "): torch.nn.EmbeddingBag.from_pretrained(rows.clone(), freeze=False, mode="sum")
                for name, rows in start.items()
            }
        )
        size = job.scenario.workload.dense.num_parameters
        self.flat, self.gradient = torch.zeros(size), torch.zeros(size)
        seed = job.scenario.execution.seed
        self.dense = DenseModel(job.scenario.workload.dense, seed, self.flat, self.gradient, exact=False)

    def vectors(self, job, batches):
        for table in job.scenario.workload.tables:
            for feature in table.features:
                ids = [torch.from_numpy(batch.ids(feature)) for batch in batches]
                lengths = np.concatenate([batch.lengths[batch.features.index(feature)] for batch in batches])
                offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)[:-1]]))
                yield self.tables[table.name.replace(".", " ")](torch.cat(ids), offsets)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_one_replica_is_plain_torch_training_on_the_whole_batch(all_kinds, optimizer):
    """Embedding bags, torch's optimizers, the mean loss of the concatenated batches of four ranks."""
    job = all_kinds(optimizer=optimizer)
    prediction = Prediction(job.scenario, Cluster(job.cluster))
    reference = DenseReference(prediction, RUN)
    plain = PlainModel(job, {name: torch.from_numpy(rows) for name, rows in rows_of(job, reference).items()})
    if optimizer == "sgd":
        embedding = torch.optim.SGD(plain.tables.parameters(), lr=0.1)
    else:
        embedding = torch.optim.Adagrad(plain.tables.parameters(), lr=0.1, eps=1e-8)
    dense = torch.optim.Adam(plain.dense.tensors, lr=RUN.dense_learning_rate)
    seed, samples, host = job.scenario.execution.seed, job.scenario.workload.batch_size, torch.device("cpu")
    for step in range(3):
        reference.step()
        batches = [rank_batch(prediction, rank, step) for rank in range(4)]
        inputs = torch.cat([dense_inputs(seed, step, rank, samples, 3, host, exact=False) for rank in range(4)])
        wanted = torch.cat([labels(seed, step, rank, samples, host, exact=False) for rank in range(4)])
        logits = plain.dense.logits(inputs, list(plain.vectors(job, batches)))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted)
        embedding.zero_grad()
        plain.gradient.zero_()
        loss.backward()
        embedding.step()
        dense.step()
        assert np.mean(reference.losses[-1]) == pytest.approx(loss.item(), rel=1e-5)
    trained = {name.replace(" ", "."): table.weight.detach().numpy() for name, table in plain.tables.items()}
    assert_close(rows_of(job, reference), trained)
    np.testing.assert_allclose(reference.dense.numpy(), plain.flat.numpy(), rtol=1e-5, atol=1e-6)


def test_row_wise_adagrad_by_hand(all_kinds):
    """After one step from v = 0 every touched row of a whole table moved by rate / rms of its gradient times it."""
    job = all_kinds(optimizer="rowwise_adagrad")
    prediction = Prediction(job.scenario, Cluster(job.cluster))
    start = rows_of(job, DenseReference(prediction, RUN))["table_wise.sum"].copy()
    reference = reference_of(job, steps=1)
    copy = reference.copy_of("table_wise.sum", 0)
    moved = start - copy.weights.numpy()
    touched = copy.touched.numpy()
    assert not moved[~touched].any()
    rms = np.sqrt((moved[touched] ** 2).mean(axis=1))
    np.testing.assert_allclose(rms, 0.1, rtol=1e-3)  # rate x gradient / rms(gradient) has the rms of the rate
    (v,) = copy.state[0]
    np.testing.assert_allclose(v.numpy()[touched], (copy.gradient.numpy()[touched] / 4) ** 2 @ np.full(8, 1 / 8), 1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad", "adam"])
def test_replicas_that_exchange_gradients_train_as_one(all_kinds, optimizer):
    job = all_kinds(optimizer=optimizer)
    both = reference_of(job, sharding_group_size=2, sync="gradients")
    assert_close(rows_of(job, both), rows_of(job, reference_of(job)))
    assert_close(rows_of(job, both, rank=0), rows_of(job, both, rank=2))


def test_averaging_weights_after_every_step_of_sgd_is_a_step_by_the_mean_gradient(all_kinds):
    job = all_kinds(optimizer="sgd")
    assert_close(rows_of(job, reference_of(job, sharding_group_size=2)), rows_of(job, reference_of(job)))


def test_averaging_every_second_step_lets_replicas_drift_between(all_kinds):
    job = all_kinds(optimizer="sgd")
    apart = reference_of(job, steps=1, sharding_group_size=2, sync_interval=2)
    again = reference_of(job, steps=2, sharding_group_size=2, sync_interval=2)
    name = "row_wise.sum"
    assert not np.array_equal(rows_of(job, apart, rank=0)[name], rows_of(job, apart, rank=2)[name])
    assert np.array_equal(rows_of(job, again, rank=0)[name], rows_of(job, again, rank=2)[name])


def test_averaging_takes_the_optimizers_state_along_and_fully_sharded_does_not(all_kinds):
    job = all_kinds(optimizer="rowwise_adagrad")
    averaged = reference_of(job, steps=1, sharding_group_size=2)
    sharded = reference_of(job, steps=1, sharding_group_size=2, sync="fully_sharded")
    name = "table_wise.sum"
    states = [[one.copy_of(name, rank).state[0][0].numpy() for rank in (0, 2)] for one in (averaged, sharded)]
    assert np.array_equal(*states[0])
    assert not np.array_equal(*states[1])
    np.testing.assert_allclose(states[0][0], (states[1][0] + states[1][1]) / 2, rtol=1e-5)


def test_fully_sharded_copies_differ_by_their_last_steps_and_their_mean_is_the_averaged_copy(all_kinds):
    """With SGD: mean(W - step) = mean(W) - mean(step), however the means are taken."""
    job = all_kinds(optimizer="sgd")
    sharded = reference_of(job, steps=1, sharding_group_size=2, sync="fully_sharded")
    averaged = reference_of(job, steps=1, sharding_group_size=2)
    left, right = rows_of(job, sharded, rank=0), rows_of(job, sharded, rank=2)
    assert not np.array_equal(left["row_wise.sum"], right["row_wise.sum"])
    assert_close({name: (left[name] + right[name]) / 2 for name in left}, rows_of(job, averaged))


def test_row_wise_adagrad_of_replicas_divides_its_squares_by_their_number(all_kinds):
    """From v = 0 the rms of a group's own step is rate x sqrt(replicas)."""
    job = all_kinds(optimizer="rowwise_adagrad")
    prediction = Prediction(job.scenario, Cluster(job.cluster))
    start = rows_of(job, DenseReference(prediction, RUN))["table_wise.sum"].copy()
    copy = reference_of(job, steps=1, sharding_group_size=2, sync_interval=2).copy_of("table_wise.sum", 0)
    moved = (start - copy.weights.numpy())[copy.touched.numpy()]
    np.testing.assert_allclose(np.sqrt((moved**2).mean(axis=1)), 0.1 * 2**0.5, rtol=1e-3)


def test_vectors_that_travel_whole_are_rounded_by_the_codec(all_kinds):
    """bf16 vectors have 8 significant bits; those of tables that every rank holds are not sent."""
    job = all_kinds(optimizer="sgd")
    job = replace(job, scenario=replace(job.scenario, comms=Comms(forward="bf16", backward="bf16")))
    vectors = reference_of(job, steps=1).vectors[0][0]
    width = 8
    names = [table.name for table in job.scenario.workload.tables for _ in table.features]
    for place, name in enumerate(names):
        own = vectors[:, place * width : (place + 1) * width]
        as_bf16 = torch.from_numpy(own.copy()).bfloat16().float().numpy()
        if name in ("table_wise.sum", "column_wise.sum", "table_column_wise.sum"):
            assert np.array_equal(own, as_bf16), name
        if name == "data_parallel.sum":
            assert not np.array_equal(own, as_bf16)
