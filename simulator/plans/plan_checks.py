"""Every contradiction of a plan with its tables and its sharding group, as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from foreshard.simulator.job.sharding import CACHE_LOAD_FACTOR, Plan, TableSharding
from foreshard.simulator.job.workload import Table

__all__ = ["check_plan", "check_plan_by_size", "check_replicated_kernels"]

_COLUMN_KINDS = ("column_wise", "table_column_wise", "grid_shard")
_ROW_KINDS = ("row_wise", "table_row_wise", "grid_shard")
_NODE_KINDS = ("table_row_wise", "table_column_wise", "grid_shard")


def check_plan(plan: Plan, tables: tuple[Table, ...], group_size: int, local_group_size: int) -> list[str]:
    """Return all contradictions, empty if there are none; a group has `group_size` ranks, `local_group_size` a node."""
    problems = [*_check_names(plan, tables)]
    shardings = dict(plan.tables)
    for table in tables:
        how = shardings.get(table.name, plan.default)
        where = f"table '{table.name}'" + ("" if table.name in shardings else " (plan.default)")
        problems += [f"{where}: {problem}" for problem in _check_table(table, how, group_size, local_group_size)]
    return problems


def check_plan_by_size(plan: Plan, tables: tuple[Table, ...], shapes: Sequence[tuple[int, int]]) -> list[str]:
    """Return all contradictions for sharding groups of several `shapes`, (ranks of a group, those in a node).

    What is wrong in groups of some sizes only is told with these sizes.
    """
    sizes: dict[str, list[int]] = {}
    for size, local in shapes:
        for problem in check_plan(plan, tables, size, local):
            sizes.setdefault(problem, []).append(size)
    problems = [
        problem if len(found) == len(shapes) else f"{problem} [in sharding groups of {' and '.join(map(str, found))}]"
        for problem, found in sizes.items()
    ]
    return [*problems, *_check_columns_by_size(plan, tables, {local for _, local in shapes})]


def check_replicated_kernels(plan: Plan, tables: tuple[Table, ...]) -> list[str]:
    """Return what cannot be predicted of a plan where sharding groups have replicas: tables in host memory."""
    shardings = dict(plan.tables)
    kept = [table.name for table in tables if shardings.get(table.name, plan.default).compute_kernel != "fused"]
    if not kept:
        return []
    named = ", ".join(f"'{name}'" for name in kept[:3]) + (", ..." if len(kept) > 3 else "")
    return [
        f"{len(kept)} tables ({named}) are in host memory, and how replicas synchronise rows that are in host memory "
        "is not known to foreshard: shard over all ranks, or use compute_kernel = fused"
    ]


def _check_columns_by_size(plan: Plan, tables: tuple[Table, ...], local: set[int]) -> Iterator[str]:
    """A column slice is the same in all groups, or nothing is held in common that replicas could synchronise."""
    shardings = dict(plan.tables)
    for table in tables if len(local) > 1 else ():
        how = shardings.get(table.name, plan.default)
        if how.sharding == "grid_shard" and how.ranks and how.column_shards is None:
            yield (
                f"table '{table.name}': {len(how.ranks)} ranks of grid_shard make other column shards in groups that "
                f"have {' or '.join(map(str, sorted(local)))} ranks on a node: give column_shards instead of ranks"
            )


def _check_names(plan: Plan, tables: tuple[Table, ...]) -> Iterator[str]:
    if not tables:
        yield "there are no tables to shard: give the workload at least one"
    known = [table.name for table in tables]
    names = set(known)
    for name, count in Counter(known).items():
        if count > 1:
            yield f"{count} tables are named '{name}': a plan needs every name once"
    for name, count in Counter(name for name, _ in plan.tables).items():
        if count > 1:
            yield f"the plan shards table '{name}' {count} times: keep one"
        if name not in names:
            yield f"the plan shards table '{name}', which the workload does not have{_did_you_mean(name, known)}"


def _did_you_mean(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known[:10_000], n=1)
    return (
        f": did you mean '{close[0]}'?"
        if close
        else f": its tables are {', '.join(known[:5])}" + (" ..." if len(known) > 5 else "")
    )


def _check_table(table: Table, how: TableSharding, group_size: int, local: int) -> Iterator[str]:
    yield from _check_options(how)
    yield from _check_columns(table, how, local)
    if how.sharding in _NODE_KINDS:
        yield from _check_node(how, group_size, local)
    if how.ranks is not None:
        yield from _check_ranks(how, group_size, local)
    if how.row_splits is not None and how.sharding in _ROW_KINDS:
        yield from _check_row_splits(table, how, group_size, local)


def _check_options(how: TableSharding) -> Iterator[str]:
    kind = how.sharding
    if how.owner == "hash" and kind not in _ROW_KINDS:
        yield f'{kind} has no row shards, so owner = "hash" means nothing: use row_wise or drop owner'
    if how.row_splits is not None and kind not in _ROW_KINDS:
        yield f"{kind} has no row shards, so row_splits mean nothing: use row_wise or drop row_splits"
    if how.row_splits is not None and how.owner == "hash":
        yield 'row_splits are ranges of rows and contradict owner = "hash": keep one of the two'
    if how.column_shards is not None and kind not in _COLUMN_KINDS:
        yield f"{kind} has no column shards, so column_shards means nothing: use column_wise or drop column_shards"
    if how.compute_kernel != "fused" and kind == "data_parallel":
        yield f"data_parallel tables live in HBM, compute_kernel = {how.compute_kernel} needs a shard: use row_wise"
    if how.cache_load_factor != CACHE_LOAD_FACTOR and how.compute_kernel != "fused_uvm_caching":
        yield (
            f"compute_kernel {how.compute_kernel} has no cache, so cache_load_factor means nothing: use "
            "fused_uvm_caching or drop cache_load_factor"
        )


def _check_columns(table: Table, how: TableSharding, local: int) -> Iterator[str]:
    if how.sharding not in _COLUMN_KINDS:
        return
    ranks_each = local if how.sharding == "grid_shard" else 1
    shards = how.column_shards or (len(how.ranks) // ranks_each if how.ranks else 1)
    if shards > table.embedding_dim:
        yield f"{shards} column shards are more than its {table.embedding_dim} columns: use fewer"


def _check_node(how: TableSharding, group_size: int, local: int) -> Iterator[str]:
    if local < 2 or group_size % local:
        yield (
            f"{how.sharding} needs at least two ranks of its sharding group on every node, but here a node holds "
            f"{local} of the group's {group_size}: use contiguous placement, a larger group, or another sharding"
        )


def _check_ranks(how: TableSharding, group_size: int, local: int) -> Iterator[str]:
    ranks = how.ranks or ()
    kind = how.sharding
    absent = sorted({rank for rank in ranks if not 0 <= rank < group_size})
    if absent:
        yield (
            f"ranks {absent} do not exist: a sharding group has ranks 0 to {group_size - 1} "
            "(positions in the group, not global ranks)"
        )
    if not ranks:
        yield f"ranks is empty: name the owners or leave it out and foreshard places {kind} shards"
    elif kind == "data_parallel":
        yield "data_parallel tables are on every rank: drop ranks"
    elif kind == "table_wise" and len(ranks) != 1:
        yield f"table_wise has one owner but {len(ranks)} ranks are given: name one, or use column_wise or row_wise"
    elif kind in ("column_wise", "table_column_wise") and how.column_shards not in (None, len(ranks)):
        yield f"column_shards = {how.column_shards} but {len(ranks)} ranks are given: name one rank per column shard"
    elif kind == "row_wise":
        yield from _check_distinct(ranks)
    if kind in _NODE_KINDS and ranks and not absent and local >= 2:
        yield from _check_node_ranks(how, ranks, local)


def _check_distinct(ranks: tuple[int, ...]) -> Iterator[str]:
    double = sorted(rank for rank, count in Counter(ranks).items() if count > 1)
    if double:
        yield f"ranks {double} are named twice: a rank owns one row shard of a table"


def _check_node_ranks(how: TableSharding, ranks: tuple[int, ...], local: int) -> Iterator[str]:
    """Ranks of node kinds: all columns on one node, or whole nodes, one after the other, for row parts."""
    if how.sharding == "table_column_wise":
        if len({rank // local for rank in ranks}) > 1:
            yield f"table_column_wise keeps a table on one node, but ranks {list(ranks)} lie on several ({local} each)"
        return
    slices = [ranks[start : start + local] for start in range(0, len(ranks), local)]
    wanted = 1 if how.sharding == "table_row_wise" else how.column_shards
    whole = all(
        sorted(part) == list(range(min(part) // local * local, min(part) // local * local + local)) for part in slices
    )
    if not whole or (wanted is not None and len(slices) != wanted):
        nodes = "one node" if how.sharding == "table_row_wise" else "one node for each column shard"
        yield f"{how.sharding} needs all {local} ranks of {nodes}, in {local}s, but ranks are {list(ranks)}"


def _check_row_splits(table: Table, how: TableSharding, group_size: int, local: int) -> Iterator[str]:
    splits = how.row_splits or ()
    wanted = local if how.sharding != "row_wise" else len(how.ranks or range(group_size))
    if len(splits) != wanted:
        yield f"row_splits has {len(splits)} parts but there are {wanted} owners: give one number of rows for each"
    if any(rows < 0 for rows in splits):
        yield "row_splits has negative row counts: a part holds zero rows or more"
    if sum(splits) != table.num_embeddings:
        yield f"row_splits sum to {sum(splits)} rows but the table has {table.num_embeddings}: they must agree"
