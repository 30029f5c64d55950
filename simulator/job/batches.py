"""Id batches in jagged form: the ids of one rank's samples, feature by feature."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.permute import segment_order, starts_of
from foreshard.simulator.job.workload import Table
from foreshard.topologies.errors import InputError

__all__ = ["JaggedBatch", "check_ids", "jagged_batch", "samples_of", "split_samples"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JaggedBatch:
    """One rank's ids: `lengths` [features, samples], `values` [ids] feature by feature, then sample by sample.

    This is the layout of TorchRec's KeyedJaggedTensor. `weights` [ids] scale the vectors of a weighted pooling.
    Raises InputError with every way in which the arrays contradict each other.
    """

    features: tuple[str, ...]
    lengths: IntArray
    values: IntArray
    weights: FloatArray | None = None

    def __post_init__(self) -> None:
        problems = list(_contradictions(self))
        if problems:
            raise InputError(problems, where="id batch")

    @property
    def samples(self) -> int:
        """Samples in the batch."""
        return int(self.lengths.shape[1])

    @property
    def feature_starts(self) -> IntArray:
        """Where each feature's ids begin in `values`, and their number at the end, [features + 1]."""
        return starts_of(self.lengths.sum(axis=1))

    def ids(self, feature: str) -> IntArray:
        """The ids of one feature, sample by sample."""
        index, starts = self.features.index(feature), self.feature_starts
        return self.values[starts[index] : starts[index + 1]]


def _contradictions(batch: JaggedBatch) -> Iterator[str]:
    yield from _type_problems(batch)
    if len(set(batch.features)) != len(batch.features):
        repeated = sorted({name for name in batch.features if batch.features.count(name) > 1})
        yield f"features {repeated} are given more than once: give each feature one row of lengths"
    if batch.lengths.ndim != 2 or len(batch.lengths) != len(batch.features):
        yield (
            f"lengths has the shape {batch.lengths.shape}, expected [{len(batch.features)}, samples]: "
            "one row for each feature, one column for each sample"
        )
        return
    yield from _length_problems(batch)
    if batch.weights is not None:
        yield from _weight_problems(batch.weights, len(batch.values))


def _type_problems(batch: JaggedBatch) -> Iterator[str]:
    for name, array in (("lengths", batch.lengths), ("values", batch.values)):
        if array.dtype != np.int64:
            yield f"{name} has the type {array.dtype}, expected int64: convert it with jagged_batch()"
    if batch.values.ndim != 1:
        yield f"values has {batch.values.ndim} dims, expected one: concatenate the ids of all features"


def _length_problems(batch: JaggedBatch) -> Iterator[str]:
    negative = np.argwhere(batch.lengths < 0)
    for feature, sample in negative[:3]:
        length = batch.lengths[feature, sample]
        yield f"feature {batch.features[feature]!r}, sample {sample}: length {length} is negative, expected 0 or more"
    if len(negative) > 3:
        yield f"{len(negative) - 3} more lengths are negative"
    ids = len(batch.values)
    # A sum in 64 bits may wrap around to the right one if a single length is above it: such are added up in full.
    total = sum(batch.lengths.ravel().tolist()) if (batch.lengths > ids).any() else int(batch.lengths.sum())
    if total != ids:
        yield f"lengths add up to {total} ids but values holds {ids}: the file may be cut or mixed up"


def _weight_problems(weights: FloatArray, ids: int) -> Iterator[str]:
    if weights.shape != (ids,):
        yield f"weights has the shape {weights.shape}, expected [{ids}]: one weight for each id"
        return
    bad = np.flatnonzero(~np.isfinite(weights))
    if len(bad):
        yield f"{len(bad)} weights are not finite (first: {weights[bad[0]]} at id {bad[0]}): give finite weights"


def jagged_batch(samples: Mapping[str, Sequence[Sequence[int]]]) -> JaggedBatch:
    """Return the batch of plain lists: for each feature a list of samples, each a list of ids."""
    sizes = {len(rows) for rows in samples.values()}
    if len(sizes) > 1:
        raise InputError(f"features have {sorted(sizes)} samples, expected one number: use [] for a sample without ids")
    lengths = [[len(ids) for ids in rows] for rows in samples.values()]
    values = [value for rows in samples.values() for ids in rows for value in ids]
    return JaggedBatch(
        features=tuple(samples),
        lengths=np.array(lengths, dtype=np.int64).reshape(len(samples), max(sizes, default=0)),
        values=np.array(values, dtype=np.int64),
    )


def samples_of(batch: JaggedBatch, samples: IntArray) -> JaggedBatch:
    """Return the batch of the samples at these positions, in their order; a sample may come more than once."""
    number = np.arange(len(batch.features))[:, None] * batch.samples + samples
    at = segment_order(batch.lengths.ravel(), number.ravel())
    return JaggedBatch(
        features=batch.features,
        lengths=batch.lengths[:, samples],
        values=batch.values[at],
        weights=None if batch.weights is None else batch.weights[at],
    )


def split_samples(batch: JaggedBatch, ranks: int) -> tuple[JaggedBatch, ...]:
    """Return the batch of each rank: neighbouring samples, in shares that differ by one at most."""
    cuts = [batch.samples * rank // ranks for rank in range(ranks + 1)]
    bag_starts = starts_of(batch.lengths.ravel())[:-1].reshape(batch.lengths.shape)
    ends = np.append(bag_starts, batch.feature_starts[1:, None], axis=1)
    return tuple(_samples(batch, ends, slice(begin, end)) for begin, end in pairwise(cuts))


def _samples(batch: JaggedBatch, starts: IntArray, samples: slice) -> JaggedBatch:
    """The samples of a span; `starts` [features, samples + 1] is where each sample's ids begin."""
    spans = [slice(row[samples.start], row[samples.stop]) for row in starts]
    none = np.empty(0, dtype=np.int64)
    return JaggedBatch(
        features=batch.features,
        lengths=batch.lengths[:, samples],
        values=np.concatenate([none, *(batch.values[span] for span in spans)]),
        weights=None if batch.weights is None else np.concatenate([none, *(batch.weights[span] for span in spans)]),
    )


def check_ids(batch: JaggedBatch, tables: Iterable[Table], where: str = "id batch") -> None:
    """Raise InputError unless the batch has every feature of `tables` and all its ids lie in their tables."""
    problems: list[str] = []
    starts = batch.feature_starts
    index = {name: position for position, name in enumerate(batch.features)}
    for table in tables:
        for feature in table.features:
            if feature not in index:
                problems.append(f"feature {feature!r} of table {table.name!r} is missing: the batch has {_few(index)}")
                continue
            ids = batch.values[starts[index[feature]] : starts[index[feature] + 1]]
            problems += _range_problems(ids, feature, table)
    if problems:
        raise InputError(problems, where=where)


def _range_problems(ids: IntArray, feature: str, table: Table) -> Iterator[str]:
    if len(ids) and ids.view(np.uint64).max() >= table.num_embeddings:  # a negative id is a huge one without its sign
        outside = ids[(ids < 0) | (ids >= table.num_embeddings)]
        yield (
            f"feature {feature!r}: {len(outside)} ids lie outside table {table.name!r} (first: {outside[0]}), expected "
            f"0 to {table.num_embeddings - 1}: map raw ids with a feature family or raise num_embeddings"
        )


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(map(repr, listed[:8])) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
