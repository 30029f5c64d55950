"""A batch for each rank, made only when it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import overload

from foreshard.simulator.job.batches import JaggedBatch

__all__ = ["RankBatches"]


class RankBatches(Sequence[JaggedBatch]):
    """One batch for each of `world_size` ranks; whoever makes them says in `of_rank` how."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size

    @abstractmethod
    def of_rank(self, rank: int) -> JaggedBatch:
        """The batch of one rank."""

    def __len__(self) -> int:
        return self._world_size

    @overload
    def __getitem__(self, index: int) -> JaggedBatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[JaggedBatch]: ...
    def __getitem__(self, index: int | slice) -> JaggedBatch | list[JaggedBatch]:
        if isinstance(index, slice):
            return [self[rank] for rank in range(*index.indices(len(self)))]
        return self.of_rank(range(self._world_size)[index])
