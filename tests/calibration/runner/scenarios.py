"""Small jobs on four ranks, laid out by hand: tables of every sharding kind in every layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.scenario import ClusterChoice, Comms, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Dense, Table, Workload

SHARDINGS = {
    "table_wise": TableSharding(sharding="table_wise"),
    "column_wise": TableSharding(sharding="column_wise", column_shards=2),
    "row_wise": TableSharding(sharding="row_wise"),
    "row_wise by hash": TableSharding(sharding="row_wise", owner="hash"),
    "data_parallel": TableSharding(sharding="data_parallel"),
    "table_row_wise": TableSharding(sharding="table_row_wise"),
    "table_column_wise": TableSharding(sharding="table_column_wise", column_shards=2),
    "grid_shard": TableSharding(sharding="grid_shard", column_shards=2),
}
INSIDE_NODES = ("table_row_wise", "table_column_wise", "grid_shard")  # need groups that fill nodes evenly


@dataclass(frozen=True)
class Placing:
    """A layout and the machine of four ranks that it is for; `fills_nodes`: groups have equal parts in their nodes."""

    layout: Layout
    nodes: int = 2
    ranks: int = 2
    fills_nodes: bool = True


ODD = ((2, 0, 3), (1,))
PLACINGS = {
    "global": Placing(Layout()),
    "one node": Placing(Layout(), nodes=1, ranks=4),
    "contiguous, weights": Placing(Layout(sharding_group_size=2)),
    "contiguous, weights every 2nd step": Placing(Layout(sharding_group_size=2, sync_interval=2)),
    "contiguous, gradients": Placing(Layout(sharding_group_size=2, sync="gradients")),
    "contiguous, fully sharded": Placing(Layout(sharding_group_size=2, sync="fully_sharded")),
    "interleaved, weights": Placing(Layout(sharding_group_size=2, placement="interleaved"), nodes=1, ranks=4),
    "interleaved, gradients": Placing(
        Layout(sharding_group_size=2, placement="interleaved", sync="gradients"), nodes=1, ranks=4
    ),
    "interleaved, fully sharded": Placing(
        Layout(sharding_group_size=2, placement="interleaved", sync="fully_sharded"), nodes=1, ranks=4
    ),
    "every rank a replica": Placing(Layout(sharding_group_size=1), fills_nodes=False),
    "groups of 3 and 1, weights": Placing(Layout(groups=ODD), fills_nodes=False),
    "groups of 3 and 1, gradients": Placing(Layout(groups=ODD, sync="gradients"), fills_nodes=False),
}


def kinds_for(placing: str) -> tuple[str, ...]:
    """The sharding kinds that a layout allows."""
    return tuple(kind for kind in SHARDINGS if PLACINGS[placing].fills_nodes or kind not in INSIDE_NODES)


def tables_of(kind: str) -> tuple[Table, ...]:
    """A table that is summed, one that is averaged and looked up by two features, and one of sequences.

    Bags have one or two ids, so that means of whole numbers are halves at most, which float32 adds up exactly.
    """
    return tuple(
        Table(
            name=f"{kind}, {pooling}",
            num_embeddings=9 + number,
            embedding_dim=2 + 2 * number,
            pooling=pooling,
            pooling_factor=1.5,
            feature_names=(f"{kind}, first", f"{kind}, second") if pooling == "mean" else (),
        )
        for number, pooling in enumerate(("sum", "mean", "none"))
    )


def every_kind(
    placing: str, execution: Execution, *, kinds: Sequence[str] | None = None, comms: Comms | None = None
) -> Scenario:
    """Tables of all sharding kinds that a layout allows, or of some, in one job."""
    chosen = {kind: tables_of(kind) for kind in kinds or kinds_for(placing)}
    return Scenario(
        cluster=ClusterChoice(preset="p5.48xlarge"),  # unused: tests give the cluster
        workload=Workload(
            batch_size=3,
            tables=tuple(table for tables in chosen.values() for table in tables),
            dense=Dense(layers=((2, 2), (4, 1))),
        ),
        plan=Plan(tables=tuple((table.name, SHARDINGS[kind]) for kind, own in chosen.items() for table in own)),
        layout=PLACINGS[placing].layout,
        execution=replace(execution, routing="sampled"),
        comms=comms or Comms(),
    )
