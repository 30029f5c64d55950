"""The README's table of errors is what `make accuracy` prints: its figures are computed again and compared as text."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from foreshard.calibration.logs.collective_fit import relative_errors

from .test_collectives_accuracy import KINDS, P5, calibrates, fitted_without, from_1_mib, one_process, p5
from .test_collectives_cases import TOLERANCE, rows

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def shown(what: str) -> list[str]:
    """Rows, median and worst of a line of the table."""
    [line] = [line for line in README.splitlines() if line.startswith(f"| {what} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][2:]


def cells(errors):
    sizes = np.abs(errors)
    return [str(len(sizes)), *(f"{value * 100:.1f} %" for value in (np.median(sizes), sizes.max()))]


@pytest.mark.parametrize("kind", KINDS)
def test_errors_of_held_out_rows_on_p5_are_those_computed(kind):
    held_out = [row for row in P5 if row.kind == kind and not calibrates(row)]
    name = kind.replace("_", "-")
    assert shown(f"{name}, p5 at 2, 4, 8 nodes, held out") == cells(relative_errors(p5, held_out))


def test_errors_of_node_counts_left_out_are_those_computed():
    every = [
        np.abs(relative_errors(fitted_without(nodes), [r for r in P5 if r.kind == "all_to_all" and r.nodes == nodes]))
        for nodes in (2, 4, 8)
    ]
    medians = " / ".join(f"{np.median(errors) * 100:.1f}" for errors in every)
    whole = np.concatenate(every)
    assert shown("all-to-all, p5, node count left out of the fit") == [
        str(len(whole)), f"{medians} %", f"{whole.max() * 100:.1f} %",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["all_to_all", "all_reduce"])
def test_errors_on_8_a100_are_those_computed(kind):
    name = kind.replace("_", "-")
    assert shown(f"{name}, 8 x A100 in one node, from 1 MiB") == cells(relative_errors(one_process, from_1_mib(kind)))


def test_reported_cases_are_as_many_as_the_readme_says():
    limits = [TOLERANCE[row.within] for row in rows()]
    held = [limit for limit in limits if limit < float("inf")]
    near, quarter = sum(limit <= 0.15 for limit in held), sum(0.15 < limit <= 0.25 for limit in held)
    text = " ".join(README.split())
    said = re.search(
        r"(\d+) rows of user reports .*? (\d+) of them are held to a named tolerance, the smallest that holds: (\d+) "
        r"lie within 15 % and (\d+) more within 25 %; (\d+) are missed by more",
        text,
    )
    assert said is not None
    assert [int(number) for number in said.groups()] == [
        len(limits), len(held), near, quarter, len(held) - near - quarter,
    ]  # fmt: skip
    assert f"{len(limits) - len(held)} rows have a cause that their thread names" in text
