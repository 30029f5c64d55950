"""Export a resolved plan to TorchRec: the calls that `construct_module_sharding_plan` takes, table by table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.plans.placement import row_bounds
from foreshard.topologies.errors import InputError

__all__ = ["Call", "calls_text", "torchrec_calls"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function of torchrec.distributed.sharding_plan, as `column_wise(ranks=[0, 3])`."""

    function: str
    arguments: tuple[tuple[str, int | list[int] | str], ...] = ()

    def __str__(self) -> str:
        return f"{self.function}({', '.join(f'{name}={value!r}' for name, value in self.arguments)})"


def torchrec_calls(sharded: Sequence[ShardedTable], world_size: int, local_world_size: int) -> dict[str, Call]:
    """Return, by table name, the call that gives TorchRec the same shards on the same ranks.

    TorchRec plans for one sharding group: `world_size` are its ranks, `local_world_size` those that share a node.
    Raises InputError with everything that TorchRec's functions cannot say: hash owners, uneven or partial row_wise
    shards, column slices of unequal width.
    """
    problems = [
        f"table '{item.table.name}': {problem}"
        for item in sharded
        for problem in _impossible(item, world_size, local_world_size)
    ]
    if problems:
        raise InputError(problems, where="export to TorchRec")
    return {item.table.name: _call(item, local_world_size) for item in sharded}


def _impossible(item: ShardedTable, world: int, local: int) -> Iterator[str]:
    by_row = item.sharding in ("row_wise", "table_row_wise", "grid_shard")
    if item.owner == "hash" and by_row:
        yield 'TorchRec shards rows by ranges only, not by a hash of the id: use owner = "range"'
    elif by_row and item.row_bounds.tolist() != row_bounds(item.table.num_embeddings, item.row_parts).tolist():
        yield "TorchRec trains with equal row blocks only: drop row_splits"
    if item.sharding == "row_wise" and item.owners[0].tolist() != list(range(world)):
        yield "TorchRec's row_wise uses every rank in order: drop ranks"
    if len(set(np.diff(item.col_bounds).tolist())) > 1:
        yield f"its {item.table.embedding_dim} columns are not {item.col_parts} equal slices, which TorchRec needs"
    if item.in_host_memory and item.sharding in ("table_row_wise", "grid_shard"):
        yield f"TorchRec's {item.sharding} takes no compute kernel: use compute_kernel = fused, or row_wise"
    if item.sharding in ("table_row_wise", "grid_shard") and item.row_parts != local:
        yield f"its {item.row_parts} row shards are not the {local} ranks of a node"


def _call(item: ShardedTable, local: int) -> Call:
    call = _placed(item, local)
    if not item.in_host_memory:
        return call
    return Call(call.function, (*call.arguments, ("compute_kernel", item.compute_kernel)))


def _placed(item: ShardedTable, local: int) -> Call:
    first = item.owners[:, 0].tolist()
    match item.sharding:
        case "data_parallel" | "row_wise":
            return Call(item.sharding)
        case "table_wise":
            return Call("table_wise", (("rank", first[0]),))
        case "column_wise" | "table_column_wise":
            return Call("column_wise", (("ranks", first),))
        case "table_row_wise":
            return Call("table_row_wise", (("host_index", first[0] // local),))
        case "grid_shard":
            return Call("grid_shard", (("host_indexes", [rank // local for rank in first]),))


def calls_text(calls: dict[str, Call], modules: dict[str, str], *, world_size: int, local_world_size: int) -> str:
    """Return Python source with one dict of calls a module, for `construct_module_sharding_plan`, and how to use it.

    `modules` gives the module path of each table; tables without one stand under "".
    """
    functions = sorted({call.function for call in calls.values()})
    lines = [
        "# Sharding plan written by foreshard.",
        f"from torchrec.distributed.sharding_plan import {', '.join([*functions, 'construct_module_sharding_plan'])}",
        "",
        f"WORLD_SIZE, LOCAL_SIZE = {world_size}, {local_world_size}",
        "PER_PARAM_SHARDING = {",
    ]
    for module in sorted({modules.get(name, "") for name in calls}):
        lines.append(f"    {module!r}: {{")
        lines += [f"        {name!r}: {call}," for name, call in calls.items() if modules.get(name, "") == module]
        lines.append("    },")
    lines += [
        "}",
        "",
        "",
        "def module_plan(module, path):",
        "    return construct_module_sharding_plan(",
        "        module, PER_PARAM_SHARDING[path], local_size=LOCAL_SIZE, world_size=WORLD_SIZE",
        "    )",
    ]
    return "\n".join(lines) + "\n"
