"""What every rank of a sharded run has, against the dense reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from foreshard.calibration.runner.dense_reference import DenseReference
from foreshard.simulator.step.prediction import Prediction

EXACT = 2**20
"""Sixteenths of numbers below this have sums that float32 holds exactly."""


class Pair(NamedTuple):
    """One thing that both have: `what` in words, and its kind: losses, vectors, dense, rows or state."""

    kind: str
    what: str
    found: Any
    expected: Any


def pairs(answers, reference: DenseReference) -> Iterator[Pair]:
    """Loss, vectors, dense parameters, rows and optimizer state of every rank."""
    for rank, answer in enumerate(answers):
        yield Pair("losses", f"losses of rank {rank}", answer["losses"], [step[rank] for step in reference.losses])
        assert len(answer["vectors"]) == len(reference.vectors)
        for step, vectors in enumerate(answer["vectors"]):
            yield Pair("vectors", f"vectors of rank {rank}, step {step}", vectors, reference.vectors[step][rank])
        yield Pair("dense", f"dense parameters of rank {rank}", answer["dense"], reference.dense.numpy())
        for held in answer["rows"]:
            yield from _rows(held, reference, rank)


def _rows(held, reference: DenseReference, rank: int) -> Iterator[Pair]:
    copy, span = reference.copy_of(held.table, rank), slice(held.columns.start, held.columns.stop)
    where = f"table {held.table}, columns {held.columns}, on rank {rank}"
    yield Pair("rows", f"rows of {where}", held.weights, copy.weights[held.rows, span].float().numpy())
    states = copy.state[copy.columns.index(span)]
    assert len(held.state) == len(states)
    for found, state in zip(held.state, states, strict=True):
        yield Pair("state", f"state of {where}", found, state[held.rows].numpy())


def assert_equal(answers, reference: DenseReference) -> None:
    """Bit for bit, with numbers small enough that equality proves something."""
    for pair in pairs(answers, reference):
        np.testing.assert_array_equal(pair.found, pair.expected, err_msg=pair.what)
        assert np.abs(pair.expected).max(initial=0) < EXACT, f"{pair.what}: too large for sixteenths in float32"


def assert_close(answers, reference: DenseReference, tolerance: Callable[[Pair], float]) -> None:
    """Within `tolerance` of a pair, relative to each value and to the largest of its kind."""
    for pair in pairs(answers, reference):
        near = tolerance(pair)
        largest = float(np.abs(pair.expected).max(initial=0))
        np.testing.assert_allclose(pair.found, pair.expected, rtol=near, atol=near * largest, err_msg=pair.what)


def assert_every_element_once(answers, prediction: Prediction) -> None:
    """A sharding group holds every element of a sharded table once; of a replicated one every rank holds all."""
    replicated = {one.table.name for one in prediction.sharded if one.sharding == "data_parallel"}
    for group in prediction.layout.sharding.members:
        for table in prediction.scenario.workload.tables:
            held = np.zeros((table.num_embeddings, table.embedding_dim), dtype=int)
            for part in (one for rank in group for one in answers[rank]["rows"] if one.table == table.name):
                held[part.rows[:, None], np.array(part.columns)] += 1
            assert (held == (len(group) if table.name in replicated else 1)).all(), table.name
