"""An exported plan makes TorchRec cut the same shards for the same ranks, or is refused with every reason."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Table
from foreshard.simulator.plans.placement import resolve_plan
from foreshard.simulator.torchrec.torchrec_export import calls_text, torchrec_calls
from foreshard.topologies.errors import InputError

WORLD, LOCAL = 8, 4
KINDS = ["data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard"]


def resolved(kind, rows=100, dim=256, **more):
    table = Table(name="t", num_embeddings=rows, embedding_dim=dim)
    return resolve_plan(Plan(default=TableSharding(sharding=kind, **more)), (table,), WORLD, LOCAL)


def blocks(total, parts):
    """TorchRec's row blocks: ceil(total / parts) each, the last ones short or empty."""
    size = -(-total // parts)
    return [(min(size * i, total), min(size * (i + 1), total)) for i in range(parts)]


def torchrec_shards(call, rows, dim):
    """(rows, columns, rank) that TorchRec makes of a call, by the rules of its documentation."""
    arguments = dict(call.arguments)
    match call.function:
        case "data_parallel":
            return set()
        case "table_wise":
            return {((0, rows), (0, dim), arguments["rank"])}
        case "row_wise":
            return {(block, (0, dim), rank) for rank, block in enumerate(blocks(rows, WORLD))}
        case "column_wise":
            width = dim // len(arguments["ranks"])
            return {((0, rows), (width * i, width * (i + 1)), rank) for i, rank in enumerate(arguments["ranks"])}
        case "table_row_wise":
            first = arguments["host_index"] * LOCAL
            return {(block, (0, dim), first + i) for i, block in enumerate(blocks(rows, LOCAL))}
        case "grid_shard":
            hosts = arguments["host_indexes"]
            width = dim // len(hosts)
            return {
                (block, (width * c, width * (c + 1)), host * LOCAL + i)
                for c, host in enumerate(hosts)
                for i, block in enumerate(blocks(rows, LOCAL))
            }


def own_shards(item):
    cuts, columns = item.row_bounds.tolist(), item.col_bounds.tolist()
    return {
        ((cuts[r], cuts[r + 1]), (columns[c], columns[c + 1]), int(item.owners[c, r]))
        for c in range(item.col_parts)
        for r in range(item.row_parts)
        if item.sharding != "data_parallel"
    }


@given(kind=st.sampled_from(KINDS), rows=st.integers(1, 1000), dim=st.sampled_from([16, 128, 256, 512, 1024]))
def test_torchrec_cuts_the_shards_that_foreshard_planned(kind, rows, dim):
    (item,) = resolved(kind, rows, dim)
    assert torchrec_shards(torchrec_calls([item], WORLD, LOCAL)["t"], rows, dim) == own_shards(item)


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (resolved("row_wise", owner="hash"), "not by a hash"),
        (resolved("row_wise", row_splits=(93, 1, 1, 1, 1, 1, 1, 1)), "equal row blocks only"),
        (resolved("row_wise", ranks=(0, 1)), "every rank in order"),
        (resolved("column_wise", dim=300), "are not 2 equal slices"),
    ],
)
def test_what_torchrec_cannot_say_is_refused(item, sentence):
    with pytest.raises(InputError, match=sentence):
        torchrec_calls(item, WORLD, LOCAL)


def test_all_reasons_come_at_once():
    items = [*resolved("row_wise", owner="hash"), *resolved("column_wise", dim=300)]
    with pytest.raises(InputError) as caught:
        torchrec_calls(items, WORLD, LOCAL)
    assert len(caught.value.problems) == 2


def test_the_written_source_is_python_with_one_dict_a_module():
    calls = torchrec_calls(resolved("column_wise"), WORLD, LOCAL)
    text = calls_text(calls, {"t": "model.ebc"}, world_size=WORLD, local_world_size=LOCAL)
    tree = ast.parse(text)
    assert isinstance(tree.body[0], ast.ImportFrom)
    assert tree.body[0].module == "torchrec.distributed.sharding_plan"
    assert "'t': column_wise(ranks=[0, 1])" in text
    assert "'model.ebc': {" in text
