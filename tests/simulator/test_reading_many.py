"""Files with far too many tables are refused at once; the command line shows the first mistakes of very many."""

import subprocess
import sys

import pytest

from foreshard.simulator.files.document import MOST_TABLES
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.files.tablesets import load_table_set
from foreshard.simulator.torchrec.torchrec_plan import import_plan_text
from foreshard.topologies.errors import InputError

HEAD = 'schema = 1\n[cluster]\npreset = "p5.48xlarge"\n[workload]\nbatch_size = 8\n'
ENTRY = '[[workload.tables]]\nname = "t"\nnum_embeddings = 1000\nembedding_dim = 64\n'


def test_a_million_tables_are_refused_before_the_file_is_parsed(tmp_path):
    path = tmp_path / "many.toml"
    path.write_text(HEAD + 1_000_000 * ENTRY, encoding="utf-8")
    with pytest.raises(InputError, match=rf"1000000 entries .* at most {MOST_TABLES} tables") as caught:
        read_scenario(path)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("section", ["workload", "plan"])
def test_more_tables_than_the_stated_number_are_one_mistake_however_bad_they_are(section):
    """No table is looked at: what each of them lacks is not told."""
    document = {"schema": 1, "cluster": {"preset": "p5.48xlarge"}, "workload": {"batch_size": 8, "tables": [{}]}}
    many = [{}] * (MOST_TABLES + 1) if section == "workload" else {str(key): {} for key in range(MOST_TABLES + 1)}
    document = {**document, section: {**document.get(section, {}), "tables": many}}
    with pytest.raises(InputError) as caught:
        read_scenario(document)
    assert caught.value.problems == (
        f"{section}.tables: {MOST_TABLES + 1} tables: expected at most {MOST_TABLES} tables: merge small ones",
    )


def test_table_sets_and_plans_of_too_many_tables_are_one_mistake(tmp_path):
    (tmp_path / "set.toml").write_text("schema = 1\ntables = [" + (MOST_TABLES + 1) * "{}," + "]\n", encoding="utf-8")
    row = '{"sharding_type": "data_parallel", "shards": null, "ranks": [0]}'
    rows = ",".join(f'"t{index}": {row}' for index in range(MOST_TABLES + 1))
    own = '{"format": "foreshard-plan", "schema": 1, "tables": [' + ",".join((MOST_TABLES + 1) * ["{}"]) + "]}"
    for read in (lambda: load_table_set(str(tmp_path / "set.toml")), lambda: import_plan_text(own),
                 lambda: import_plan_text('{"plan": {"m": {' + rows + "}}}")):  # fmt: skip
        with pytest.raises(InputError, match=f"{MOST_TABLES + 1} tables") as caught:
            read()
        assert len(caught.value.problems) == 1


def test_the_command_line_shows_fifty_mistakes_and_the_exception_has_all(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(HEAD + "".join(f"[[workload.tables]]\nname = 't{i}'\n" for i in range(100)), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_scenario(path)
    assert len(caught.value.problems) >= 200
    assert str(caught.value).count("\n  - ") == len(caught.value.problems)
    code = "from foreshard.topologies.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", code, "predict", str(path)], capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.count("\n  - ") == 50
    assert ran.stderr.rstrip().endswith(f"  and {len(caught.value.problems) - 50} more")


@pytest.mark.parametrize(("count", "last"), [(50, "  - 49"), (51, "  and 1 more")])
def test_a_list_is_cut_only_where_it_is_longer_than_shown(count, last):
    told = InputError([str(index) for index in range(count)]).told(50)
    assert told.splitlines()[0] == f"{count} mistakes:"
    assert told.splitlines()[-1] == last
