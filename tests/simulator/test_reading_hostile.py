"""Hostile input: files that are no TOML, bad overrides and random values are refused in sentences, never by a crash."""

from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.files.reading import read_scenario
from foreshard.topologies.errors import InputError

GOOD: dict[str, Any] = tomllib.loads("""
schema = 1
name = "x"
assumptions = [{ name = "a", value = 1, source = "b" }]
cluster = { preset = "p5.48xlarge", nodes = 2, degrade = { "*nic0->*" = 0.5 } }
[workload]
batch_size = 1024
all_tables = { data_type = "fp16", access = { shift = 1.0 } }
dense = { layers = [[13, 64], [128, 1]] }
[[workload.tables]]
name = "user_id"
num_embeddings = 1000
embedding_dim = 64
access = { zipf = 1.05 }
[[workload.tables]]
name = "item_id"
num_embeddings = 5000
embedding_dim = 64
feature_names = ["seen", "bought"]
pooling_factor = [3, 2.5]
[plan]
default = { sharding = "row_wise", owner = "hash" }
rules = [{ match = "item_*", sharding = "column_wise" }]
tables = { user_id = { sharding = "table_wise", ranks = [3] } }
[layout]
sharding_group_size = 8
[comms]
forward = "fp16"
[execution]
pipeline = "base"
seed = 1
""")


def written(folder: Path, document: dict[str, Any]) -> Path:
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(document), encoding="utf-8")
    return path


def said_of(source: Any, *overrides: str) -> tuple[str, ...]:
    """What is wrong with the scenario; anything raised but an InputError is a failure."""
    try:
        read_scenario(source, overrides)
    except InputError as error:
        return error.problems
    return ()


FILES: dict[str, tuple[bytes, str]] = {
    "not TOML": (b"schema = 1\n[cluster\n", "not valid TOML: .*line 2"),
    "no quotes": (b"schema = 1\ncluster.preset = p5\n", "not valid TOML: .*line 2, column 18"),
    "a key twice": (b"schema = 1\nschema = 1\n", "not valid TOML: .*line 2"),
    "not UTF-8": (
        b'schema = 1\nname = "caf\xe9"\n',
        r"not UTF-8 text \(byte 0xe9 at offset 22\): save the file as UTF-8",
    ),
    "UTF-16": ("schema = 1".encode("utf-16-le") + b"\xff", r"not UTF-8 text \(byte 0xff at offset 20\)"),
    "too deep": (b"a = " + b"[" * 100_000, "not valid TOML: "),
    "too many digits": (b"schema = " + b"9" * 5000, "not valid TOML: "),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_toml_says_where(name: str, tmp_path: Path) -> None:
    content, message = FILES[name]
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    (problem,) = said_of(path)
    assert re.match(message, problem)


def test_an_empty_file_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(b"")
    assert [problem.split(" is missing")[0] for problem in said_of(tmp_path / "job.toml")] == [
        "schema",
        "cluster",
        "workload",
    ]


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(b"\xef\xbb\xbf" + tomli_w.dumps(GOOD).encode())
    assert read_scenario(tmp_path / "job.toml") == read_scenario(written(tmp_path, GOOD))


def test_a_missing_file_a_folder_and_an_unknown_name_say_so(tmp_path: Path) -> None:
    assert said_of(tmp_path / "no.toml")[0].startswith("no such file")
    assert said_of(tmp_path)[0] == "is a folder: give the TOML file in it"
    assert said_of("mlperf-dcnv2-p4")[0].startswith(
        "no scenario 'mlperf-dcnv2-p4'; did you mean 'mlperf-dcnv2-p5'?; shipped are "
    )


OVERRIDES: dict[str, tuple[str, str]] = {
    "no equals": ("cluster.nodes", "\"cluster.nodes\" has no '=' in it: write key=value"),
    "no key": ("=4", '"" is not a dotted key such as cluster.nodes'),
    "bad key": ("cluster nodes=4", '"cluster nodes" is not a dotted key such as cluster.nodes'),
    "no value": ("cluster.nodes=", 'cluster.nodes: the value "" is not readable: expected a number, a word'),
    "half a list": ("plan.tables.user_id.ranks=[1,", 'plan.tables.user_id.ranks: the value "[1," is not readable'),
    "two values": ("cluster.nodes=4,8", 'cluster.nodes: the value "4,8" is not readable'),
    "unknown key": ("cluster.nodse=4", "cluster.nodse: unknown key; did you mean 'nodes'?"),
    "unknown section": ("clustr.nodes=4", "clustr: unknown key; did you mean 'cluster'?"),
    "into a number": ("cluster.nodes.x=4", "cluster.nodes.x: cluster.nodes is 2, which has no key 'x'"),
    "zero nodes": ("cluster.nodes=0", "cluster.nodes = 0: expected a whole number of at least 1"),
    "absent table": (
        "workload.tables.usr.num_embeddings=4",
        "workload.tables.usr.num_embeddings: workload.tables has no entry named 'usr'",
    ),
    "absent table in plan": ("plan.tables.usr=row_wise", "plan.tables.usr: the workload has no table 'usr'"),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_bad_override_is_one_sentence(name: str, tmp_path: Path) -> None:
    assignment, message = OVERRIDES[name]
    (problem,) = said_of(written(tmp_path, GOOD), assignment)
    assert problem.startswith(message)


def test_the_message_names_the_file_and_the_overrides(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    with pytest.raises(InputError, match="batch_size = -1") as caught:
        read_scenario(path, ("workload.batch_size=-1",))
    assert str(caught.value).startswith(f"{path} --set workload.batch_size=-1: ")


junk = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(),
        st.sampled_from([0, -1, 1, 2**63, 10**30, 1e308]),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["mlperf-dcnv2", "world", "row_wise", "p5.48xlarge", "x.toml", "user_id"]),
        st.dates(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["name", "sharding", "ranks", "match", "zipf", "user_id", "x y"]), inner, max_size=3
        ),
    ),
    max_leaves=5,
)


def paths_in(value: Any, path: str = "") -> list[str]:
    """Every place in a document, by path, and one key beside the known ones in each table."""
    if isinstance(value, list):
        return [
            found
            for index, item in enumerate(value)
            for found in [f"{path}{index}", *paths_in(item, f"{path}{index}/")]
        ]
    if isinstance(value, dict):
        inside = [found for key, item in value.items() for found in [f"{path}{key}", *paths_in(item, f"{path}{key}/")]]
        return [*inside, f"{path}odd"]
    return []


@given(path=st.sampled_from(paths_in(GOOD)), value=junk)
def test_whatever_stands_in_a_file_is_read_or_refused_in_sentences(path: str, value: Any) -> None:
    document = copy.deepcopy(GOOD)
    *way, last = path.split("/")
    here: Any = document
    for key in way:
        here = here[int(key)] if isinstance(here, list) else here[key]
    here[int(last) if isinstance(here, list) else last] = value
    assert all(problem and "\n" not in problem for problem in said_of(document))


@given(
    key=st.sampled_from([p.replace("/", ".") for p in paths_in(GOOD)]) | st.text(max_size=9), value=st.text(max_size=9)
)
def test_whatever_is_set_is_read_or_refused_in_sentences(key: str, value: str) -> None:
    assert all(problem and "\n" not in problem for problem in said_of(GOOD, f"{key}={value}"))
