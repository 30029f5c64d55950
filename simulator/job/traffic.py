"""Bytes from each member of a group to each other member, dense or as an outer product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["PairBytes"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PairBytes:
    """Bytes that member s of a group sends to member d, [members, members]; the diagonal stays on the rank.

    Either `matrix` is set, or `out` [members] and `share` [members] with bytes[s, d] = out[s] * share[d]:
    expected traffic of equal batches has this form, and 16,384 ranks need no matrix.
    """

    matrix: FloatArray | None = None
    out: FloatArray | None = None
    share: FloatArray | None = None

    @classmethod
    def dense(cls, matrix: FloatArray) -> PairBytes:
        """Traffic given pair by pair, [members, members]."""
        return cls(matrix=np.asarray(matrix, dtype=np.float64))

    @classmethod
    def outer(cls, out: FloatArray, share: FloatArray) -> PairBytes:
        """Traffic out[s] * share[d]."""
        return cls(out=np.asarray(out, dtype=np.float64), share=np.asarray(share, dtype=np.float64))

    @classmethod
    def uniform(cls, members: int, bytes_per_rank: float) -> PairBytes:
        """Every member sends `bytes_per_rank` in equal parts to all members, itself included (nccl-tests' size)."""
        return cls.outer(np.full(members, float(bytes_per_rank)), np.full(members, 1.0 / members))

    @property
    def members(self) -> int:
        """Members of the group."""
        return len(self.matrix) if self.matrix is not None else len(self._factors[0])

    @property
    def _factors(self) -> tuple[FloatArray, FloatArray]:
        assert self.out is not None
        assert self.share is not None
        return self.out, self.share

    def to_matrix(self) -> FloatArray:
        """The dense form, [members, members]."""
        if self.matrix is not None:
            return self.matrix
        out, share = self._factors
        return np.outer(out, share)

    def row(self, member: int) -> FloatArray:
        """Bytes that one member sends to each member, itself included, [members]."""
        if self.matrix is not None:
            return np.asarray(self.matrix[member])
        out, share = self._factors
        return np.asarray(out[member] * share)

    def transposed(self) -> PairBytes:
        """The same bytes flowing back: what s sent to d, d now sends to s."""
        if self.matrix is not None:
            return PairBytes.dense(self.matrix.T)
        out, share = self._factors
        return PairBytes.outer(share, out)

    def scaled(self, factor: float) -> PairBytes:
        """All bytes times `factor`."""
        if self.matrix is not None:
            return PairBytes.dense(self.matrix * factor)
        out, share = self._factors
        return PairBytes.outer(out * factor, share)

    def diagonal(self) -> FloatArray:
        """Bytes each member keeps, [members]."""
        if self.matrix is not None:
            return np.asarray(np.diagonal(self.matrix))
        out, share = self._factors
        return out * share

    def bytes_out(self) -> FloatArray:
        """Bytes each member sends to others, [members]."""
        total = self.matrix.sum(axis=1) if self.matrix is not None else self._factors[0] * self._factors[1].sum()
        return np.asarray(total - self.diagonal())

    def bytes_in(self) -> FloatArray:
        """Bytes each member receives from others, [members]."""
        total = self.matrix.sum(axis=0) if self.matrix is not None else self._factors[1] * self._factors[0].sum()
        return np.asarray(total - self.diagonal())
