"""Execute the notebooks and store their outputs: python notebooks/refresh.py [NOTEBOOK ...]."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
_PLAIN = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(path: Path, timeout_s: int = 600) -> nbformat.NotebookNode:
    """Return the notebook with fresh outputs and nothing in it that depends on when or where it ran.

    Raises CellExecutionError if a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=timeout_s, kernel_name="python3", record_timing=False)
    # Figures go into the notebook whatever backend the caller uses.
    client.execute(env={name: value for name, value in os.environ.items() if name != "MPLBACKEND"})
    notebook.metadata = nbformat.from_dict(_PLAIN)
    return notebook


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what each code cell prints."""
    return [
        "".join(output.text for output in cell.outputs if output.output_type == "stream")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def main(names: list[str]) -> None:
    for path in [Path(name) for name in names] or sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(executed(path), path)
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
