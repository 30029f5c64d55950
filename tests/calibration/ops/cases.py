"""Look-ups to draw: tables of mixed formats and modes, jagged ids that often repeat, and what to expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from hypothesis import strategies as st

from foreshard.calibration.ops.device_ops import Bags
from foreshard.kernels import reference as ref

FORMATS = {"float32": torch.float32, "float16": torch.float16, "uint16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """Tables as the reference holds them, the features that look them up, and one batch."""

    tables: list[np.ndarray]
    features: list[int]
    modes: list[str]
    lengths: np.ndarray  # [features, batch]
    ids: np.ndarray
    weights: np.ndarray | None
    gradients: np.ndarray  # [batch, width]

    @property
    def offsets(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths.ravel())]).astype(np.int64)

    @property
    def spans(self) -> list[tuple[int, int]]:
        ends = np.concatenate([[0], np.cumsum(self.lengths.sum(axis=1))])
        return [(int(a), int(b)) for a, b in pairwise(ends)]

    @property
    def columns(self) -> list[int]:
        return [0, *np.cumsum([self.tables[table].shape[1] for table in self.features])]

    def bags(self, ops) -> Bags:
        weights = None if self.weights is None else put(ops, self.weights)
        return ops.bags(put(ops, self.ids), put(ops, self.lengths), weights)

    def own_offsets(self, feature: int) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths[feature])]).astype(np.int64)

    def own(self, feature: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        begin, end = self.spans[feature]
        return self.ids[begin:end], self.own_offsets(feature), None if self.weights is None else self.weights[begin:end]

    def pooled(self) -> np.ndarray:
        """The reference's pooled vectors, [batch, width]."""
        parts = []
        for feature, table in enumerate(self.features):
            ids, offsets, weights = self.own(feature)
            rows = self.tables[table]
            parts.append(ref.pooled_lookup(rows, ids, offsets, mode=self.modes[table], weights=weights))
        return np.concatenate(parts, axis=1)

    def spread(self, table: int) -> tuple[np.ndarray, np.ndarray]:
        """(Ids, gradient of every id's vector) of one table, its features one after the other."""
        ids, gradients = [np.empty(0, np.int64)], [np.empty((0, self.tables[table].shape[1]), np.float32)]
        for feature in (f for f, used in enumerate(self.features) if used == table):
            own, offsets, weights = self.own(feature)
            part = self.gradients[:, self.columns[feature] : self.columns[feature + 1]]
            ids.append(own)
            gradients.append(ref.spread_gradients(part, offsets, mode=self.modes[table], weights=weights))
        return np.concatenate(ids), np.concatenate(gradients)


def put(ops, array: np.ndarray) -> torch.Tensor:
    """A copy on the device; uint16 are the bits of bf16."""
    array = np.ascontiguousarray(array)
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).to(ops.device)
    return torch.from_numpy(array.copy()).to(ops.device)


def got(tensor: torch.Tensor) -> np.ndarray:
    """A copy on the host; bf16 as its bits in uint16."""
    tensor = tensor.detach().cpu()
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def make_case(
    seed: int,
    dims: Sequence[int],
    *,
    rows: int = 12,
    batch: int = 5,
    longest: int = 4,
    forms: Sequence[str] = ("float32",),
    modes: Sequence[str] = ("sum",),
    weighted: bool = False,
    whole: bool = False,
) -> Case:
    """A batch with `longest` ids a bag at most; the first table is looked up by two features, the last one by none.

    `whole` numbers are small, so that every sum is exact in any order.
    """
    rng = np.random.default_rng(seed)
    features = [*range(len(dims)), 0]

    def draw(*shape: int) -> np.ndarray:
        return (rng.integers(-4, 5, shape) if whole else rng.normal(size=shape)).astype(np.float32)

    tables = [
        ref.rows_from_fp32(draw(rows, dim), np.dtype(forms[number % len(forms)]))
        for number, dim in enumerate([*dims, dims[0]])
    ]
    lengths = rng.integers(0, longest + 1, size=(len(features), batch))
    ids = (rng.random(lengths.sum()) ** 3 * rows).astype(np.int64)
    return Case(
        tables=tables,
        features=features,
        modes=[modes[number % len(modes)] for number in range(len(tables))],
        lengths=lengths,
        ids=ids,
        weights=draw(len(ids)) if weighted else None,
        gradients=draw(batch, sum(tables[table].shape[1] for table in features)),
    )


CASES = st.builds(
    make_case,
    seed=st.integers(0, 10**6),
    dims=st.lists(st.one_of(st.integers(1, 20), st.sampled_from([32, 64, 130])), min_size=1, max_size=3),
    rows=st.sampled_from([1, 2, 12, 300]),
    batch=st.integers(0, 8),
    longest=st.sampled_from([0, 1, 3, 9]),
    forms=st.lists(st.sampled_from(list(FORMATS)), min_size=1, max_size=2),
    modes=st.lists(st.sampled_from(["sum", "mean"]), min_size=1, max_size=2),
    weighted=st.booleans(),
)
