"""Recorded samples of a workload: the file read, its raw ids mapped to rows, and every rank's share of the samples."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.batches import JaggedBatch, samples_of
from foreshard.simulator.job.features import Dictionary, FeatureFamily, Hashed, Modulo, learn_dictionary, raw_id
from foreshard.simulator.job.replay import batch_of, raw_ids
from foreshard.simulator.job.row_files import Rows, read_rows, some
from foreshard.simulator.job.workload import Access, FamilyChoice, Replay, Workload
from foreshard.simulator.lookups.batch_files import read_batch
from foreshard.simulator.lookups.rank_batches import RankBatches
from foreshard.topologies.errors import InputError

__all__ = [
    "RecordedBatches",
    "counted_access",
    "family_of",
    "learnt",
    "read_samples",
    "rows_of_family",
    "samples_of_rows",
    "too_few",
]

IntArray = NDArray[np.int64]

_LOCATED = 100_000  # distinct ids of a table that are told one by one; of more, only how often rows are hit


class RecordedBatches(RankBatches):
    """One batch for each rank from recorded samples, in order: rank r has samples r x size to (r + 1) x size - 1.

    Where there are fewer than all ranks need, the samples begin anew if `repeat`; else raises InputError.
    """

    def __init__(self, samples: JaggedBatch, size: int, world_size: int, *, repeat: bool = False) -> None:
        problem = too_few(samples.samples, size, world_size, repeat=repeat)
        if problem:
            raise InputError(problem, where="workload.replay")
        self._samples = samples
        self._size = size
        super().__init__(world_size)

    @classmethod
    def of(cls, workload: Workload, world_size: int) -> RecordedBatches:
        """The batches of a workload with `replay`. Raises InputError for a file that cannot be used."""
        if workload.replay is None:
            raise InputError('execution.routing = "replayed" needs workload.replay: give the file of recorded samples')
        samples = read_samples(workload.replay, workload.families)
        return cls(samples, workload.batch_size, world_size, repeat=workload.replay.repeat)

    def of_rank(self, rank: int) -> JaggedBatch:
        """The samples of one rank."""
        first = rank * self._size
        return samples_of(self._samples, (first + np.arange(self._size)) % self._samples.samples)


def too_few(samples: int, size: int, world_size: int, *, repeat: bool) -> str:
    """Return what is wrong with so many samples for `world_size` ranks of `size` each; "" if they suffice."""
    if not samples:
        return "there are no samples in the file: give at least one"
    if repeat or samples >= size * world_size:
        return ""
    most = samples // world_size
    smaller = f"set workload.batch_size to {most} at most, " if most else ""
    return (
        f"{samples} samples are recorded, {world_size} ranks x batch_size {size} need {size * world_size}: "
        f"{smaller}use fewer ranks, or set workload.replay.repeat = true"
    )


def read_samples(replay: Replay, families: Sequence[FamilyChoice]) -> JaggedBatch:
    """Return all samples of the file: rows mapped by `families`, or a trace of ids where there are none.

    What-ifs ask for the same samples again and again: those read last are kept until the file changes.
    """
    return _read(replay, tuple(families), _stamp(replay.file))


def _stamp(file: str) -> tuple[int, int] | None:
    """Time of the last change in ns and size in bytes; None where there is no such file, which reading it tells."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=1)
def _read(replay: Replay, families: tuple[FamilyChoice, ...], stamp: tuple[int, int] | None) -> JaggedBatch:
    return samples_of_rows(read_rows(replay.file), replay, families) if families else read_batch(replay.file)


def samples_of_rows(rows: Rows, replay: Replay, families: Sequence[FamilyChoice]) -> JaggedBatch:
    """Return the samples that rows hold, one a row. Raises InputError with every mistake in ids, weights, numbers."""
    problems = some(list(_numeric_problems(rows, replay.numeric)))
    try:
        batch = batch_of(rows, [family_of(choice) for choice in families])
    except InputError as error:
        raise InputError([*problems, *error.problems], where=replay.file) from None
    if problems:
        raise InputError(problems, where=replay.file)
    return batch


def learnt(choice: FamilyChoice, rows: Rows) -> FamilyChoice:
    """Return the family with the dictionary that the rows teach it, if it has none of its own."""
    if choice.mapping != "dictionary" or choice.ids is not None:
        return choice
    most = None if choice.num_embeddings is None else choice.num_embeddings - 1
    raw = raw_ids(rows, family_of(replace(choice, ids=())))
    return replace(choice, ids=learn_dictionary(raw, min_count=choice.min_count, max_ids=most).ids)


def family_of(choice: FamilyChoice) -> FeatureFamily:
    """Return the feature family of a choice whose dictionary is known."""
    return FeatureFamily(
        name=choice.name,
        mapping=_mapping(choice),
        kind=choice.kind,
        pooling=choice.pooling,
        column=choice.column,
        weight_column=choice.weight_column,
        embedding_dim=choice.embedding_dim,
        separator=choice.separator,
        max_ids=choice.max_ids,
    )


def _mapping(choice: FamilyChoice) -> Dictionary | Modulo | Hashed:
    rows = rows_of_family(choice)
    match choice.mapping:
        case "dictionary":
            canonical = (raw_id(one) for one in choice.ids or ())
            return Dictionary(ids=tuple(dict.fromkeys(one for one in canonical if one is not None)))
        case "modulo":
            return Modulo(num_embeddings=rows, prefix=choice.prefix)
        case "hash":
            return Hashed(num_embeddings=rows)


def rows_of_family(choice: FamilyChoice) -> int:
    """Return the rows of a family's table: those given, or one for each known id and the default row."""
    return choice.num_embeddings or len(choice.ids or ()) + 1


def _numeric_problems(rows: Rows, columns: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the columns of dense features: absent ones, and cells that are no finite number."""
    for name in columns:
        if name not in rows:
            yield f"numeric: there is no column {name!r}, only {', '.join(map(repr, rows)) or 'none'}"
            continue
        for number, cell in enumerate(rows[name], start=1):
            if not _is_number(cell):
                yield f"row {number}, column {name!r}: {cell!r} is not a finite number"


def _is_number(cell: Any) -> bool:
    """Whether a cell is a finite number, written as one or not, or empty."""
    if cell is None or cell == "":
        return True
    try:
        return math.isfinite(float(cell))
    except (TypeError, ValueError, OverflowError):
        return False


def counted_access(ids: IntArray) -> Access:
    """Return the access that recorded ids show: the count of each row, or of more than 100,000 rows by frequency."""
    rows, counts = np.unique(ids, return_counts=True)
    if not len(rows):
        return Access()
    if len(rows) <= _LOCATED:
        return Access(histogram=tuple(map(float, counts)), histogram_ids=tuple(rows.tolist()))
    each, bins = np.unique(counts, return_counts=True)
    return Access(
        histogram=tuple((each * bins)[::-1].astype(float).tolist()), histogram_rows=tuple(bins[::-1].tolist())
    )
