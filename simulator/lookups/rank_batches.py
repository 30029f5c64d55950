"""A batch for each rank, made only when it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import overload

from foreshard.simulator.job.batches import JaggedBatch

__all__ = ["RankBatches", "WatchedBatches"]


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


class WatchedBatches(RankBatches):
    """Batches of which those of some ranks are shown to `see` as they are asked for, so that none is made twice."""

    def __init__(
        self, batches: Sequence[JaggedBatch], ranks: Collection[int], see: Callable[[JaggedBatch], None]
    ) -> None:
        super().__init__(len(batches))
        self._batches, self._ranks, self._see = batches, frozenset(ranks), see

    def of_rank(self, rank: int) -> JaggedBatch:
        """The batch of one rank."""
        batch = self._batches[rank]
        if rank in self._ranks:
            self._see(batch)
        return batch
