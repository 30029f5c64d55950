"""Every notebook runs, its own assertions hold, and its committed outputs are what the code gives today."""

import importlib.util
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra 'test'")
pytest.importorskip("nbclient", reason="notebooks need the extra 'test'")

_spec = importlib.util.spec_from_file_location("refresh", FOLDER / "refresh.py")
refresh = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(refresh)

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} >= {"01_first_step", "02_capacity_what_if"}


@pytest.mark.slow
@each_notebook
def test_a_notebook_runs_and_prints_what_is_committed(path):
    """All cells run in order, the assertions at the end among them."""
    committed = refresh.printed(nbformat.read(path, as_version=4))
    assert refresh.printed(refresh.executed(path)) == committed, "outputs are stale: python notebooks/refresh.py"


@each_notebook
def test_a_notebook_ends_in_assertions_of_what_it_claims(path):
    last = code(nbformat.read(path, as_version=4))[-1]
    assert len(re.findall(r"^\s*assert ", last.source, re.MULTILINE)) >= 5


@each_notebook
def test_committed_outputs_are_complete_small_and_free_of_errors(path):
    notebook = nbformat.read(path, as_version=4)
    cells = code(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert "error" not in {output.output_type for output in outputs}
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < 600_000


@each_notebook
def test_nothing_in_a_notebook_tells_where_or_when_it_ran(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|tmp|work|usr)/|iopub|\"version\"", text)
