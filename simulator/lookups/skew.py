"""Which rank owns more than its share of a table's ids, and of which table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from foreshard.simulator.ids.access import Distribution
from foreshard.simulator.job.sharding import ShardedTable

__all__ = ["HotOwner", "hot_owners"]


class HotOwner(NamedTuple):
    """The busiest row shard of one table: its owner's position in the sharding group and its share of all ids.

    `factor` compares the share with an equal one (1 / row shards); `excess` is the ids per sample above an equal share.
    """

    table: str
    position: int
    share: float
    factor: float
    excess: float


def hot_owners(sharded: Sequence[ShardedTable], top: int = 5) -> tuple[HotOwner, ...]:
    """Return the busiest owner of each table with several row shards, most excess ids first, at most `top`."""
    found = [_hottest(item) for item in sharded if item.row_parts > 1]
    return tuple(sorted(found, key=lambda hot: (-hot.excess, hot.table))[:top])


def _hottest(item: ShardedTable) -> HotOwner:
    this = Distribution.of(item.table)
    split = this.hash_parts(item.row_parts) if item.owner == "hash" else this.row_ranges(item.row_bounds)
    shares = split.mass()
    part = int(np.argmax(shares))
    share, equal = float(shares[part]), 1.0 / item.row_parts
    return HotOwner(
        table=item.table.name,
        position=int(item.owners[0, part]),
        share=share,
        factor=share / equal,
        excess=(share - equal) * item.table.ids_per_sample,
    )
