"""Predicted against measured collectives; `make accuracy` prints the tables that the README shows.

data/collectives_p5.csv: nccl-tests on AWS p5.48xlarge, NCCL 2.28.7, 2, 4 and 8 nodes, public.
data/collectives_a100x8.csv: nccl-tests on 8 x A100-SXM4-40GB driven by one process, from the test data of
microsoft/superbenchmark.

The constants of p5 are fitted to eight rows: all_to_all and all_gather at 64 MiB and 2 GiB on 2 and 8 nodes. Every
other row, all of 4 nodes and all of all_reduce are held out.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from tabulate import tabulate

from foreshard.calibration.logs.collective_fit import MeasuredCollective, fit_constants, relative_errors, with_constants
from foreshard.simulator.comms.machine_constants import machine_constant
from foreshard.simulator.comms.single import run_one
from foreshard.topologies.presets import load_preset

DATA = Path(__file__).parent / "data"
MIB = 2**20
KINDS = ("all_to_all", "all_reduce", "all_gather")
START = {
    "all_to_all": {"all_to_all_network_share": 0.9, "all_to_all_peer_s": 4e-6},
    "all_gather": {"ring_network_share": 0.9, "ring_overlap": 1.3},
}


def read_rows(name):
    with (DATA / name).open(newline="") as file:
        return [
            MeasuredCollective(
                kind=row["collective"],
                nodes=int(row["nodes"]),
                nbytes=float(row["bytes_per_rank"]),
                time_s=float(row["time_us"]) * 1e-6,
            )
            for row in csv.DictReader(file)
        ]


P5 = read_rows("collectives_p5.csv")
A100 = read_rows("collectives_a100x8.csv")
p5 = cache(lambda nodes: load_preset("p5.48xlarge", nodes))


def calibrates(row):
    return row.kind in START and row.nodes in (2, 8) and row.nbytes in (64 * MIB, 2048 * MIB)


def sizes_of_errors(errors):
    return np.abs(np.asarray(errors))


def line(label, rows, cluster_of):
    errors = sizes_of_errors(relative_errors(cluster_of, rows)) if rows else np.zeros(0)
    return [label, len(rows), *([f"{np.median(errors):.1%}", f"{errors.max():.1%}"] if rows else ["-", "-"])]


def test_accuracy_on_p5():
    table = []
    for kind in KINDS:
        rows = [row for row in P5 if row.kind == kind]
        table.append(line(f"{kind}, all rows", rows, p5))
        table.append(line(f"{kind}, held out", [row for row in rows if not calibrates(row)], p5))
        table.append(line(f"{kind}, calibrating", [row for row in rows if calibrates(row)], p5))
        table.extend(
            line(f"{kind}, {nodes} nodes", [row for row in rows if row.nodes == nodes], p5) for nodes in (2, 4, 8)
        )
    print("\n\np5.48xlarge, 32 MiB to 8 GiB\n")
    print(tabulate(table, headers=["rows", "number", "median error", "worst error"], tablefmt="github"))


# The limits of the project's plan: median and worst error over all rows.
LIMITS = {"all_to_all": (0.04, 0.12), "all_reduce": (0.12, 0.25), "all_gather": (0.15, None)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("held_out", [False, True], ids=["all", "held out"])
def test_errors_on_p5_stay_within_their_limits(kind, held_out):
    rows = [row for row in P5 if row.kind == kind and not (held_out and calibrates(row))]
    errors = sizes_of_errors(relative_errors(p5, rows))
    middle, worst = LIMITS[kind]
    assert np.median(errors) <= middle
    assert worst is None or errors.max() <= worst


def test_only_eight_rows_calibrate_and_none_of_them_is_an_all_reduce_or_of_4_nodes():
    rows = [row for row in P5 if calibrates(row)]
    assert len(rows) == 8
    assert {row.kind for row in rows} == {"all_to_all", "all_gather"}
    assert {row.nodes for row in rows} == {2, 8}


@pytest.mark.parametrize("kind", START)
def test_the_constants_of_p5_are_those_that_fit_the_calibrating_rows(kind):
    rows = [row for row in P5 if row.kind == kind and calibrates(row)]
    for name, value in fit_constants(p5, rows, START[kind]).items():
        # The machine's file holds them with three digits, or two for microseconds.
        assert machine_constant(p5(2), name) == pytest.approx(value, rel=0.01)


def fitted_without(nodes):
    """p5 with constants fitted to all all_to_all and all_gather rows of the other node counts."""
    values = {}
    for kind, start in START.items():
        values |= fit_constants(p5, [row for row in P5 if row.kind == kind and row.nodes != nodes], start)
    return cache(lambda count: with_constants(p5(count), values, f"fitted without the rows of {nodes} nodes"))


def test_accuracy_on_node_counts_left_out_of_the_fit():
    table = []
    for nodes in (2, 4, 8):
        cluster_of = fitted_without(nodes)
        for kind in KINDS:
            rows = [row for row in P5 if row.kind == kind and row.nodes == nodes]
            table.append(line(f"{kind}, {nodes} nodes", rows, cluster_of))
            errors = sizes_of_errors(relative_errors(cluster_of, rows))
            # A node count nobody fitted is predicted about as well: 12 % is what the noise of one row alone makes.
            assert np.median(errors) <= max(LIMITS[kind][0], 0.04)
    print("\n\np5.48xlarge, constants fitted to the other two node counts\n")
    print(tabulate(table, headers=["left out", "number", "median error", "worst error"], tablefmt="github"))


def test_accuracy_beyond_the_measured_node_counts():
    table = []
    for nodes in (1, 2, 4, 8, 16, 32):
        row = [nodes]
        for kind in KINDS:
            for nbytes in (32 * MIB, 1024 * MIB):
                result = run_one(p5(nodes), kind, nbytes)
                assert result.time_s >= result.bound_s
                row.append(f"{result.busbw_bytes_per_s / 1e9:.1f}")
        table.append(row)
    print("\n\np5.48xlarge, predicted busbw in GB/s (1, 16 and 32 nodes were never measured)\n")
    header = ["nodes", *(f"{kind} {size}" for kind in KINDS for size in ("32 MiB", "1 GiB"))]
    print(tabulate(table, headers=header, tablefmt="github"))


# -- 8 x A100, one process ----------------------------------------------------------------------------------------


@cache
def one_process(nodes):
    """dgx-a100 driven by one process, which launches on eight GPUs one after the other.

    Both launch floors are read off the rows below 1 MiB, which are not validated.
    """
    plain = load_preset("dgx-a100", nodes)
    small = {
        kind: [row for row in A100 if row.kind == kind and row.nbytes < MIB] for kind in ("all_to_all", "all_reduce")
    }
    smallest = min(small["all_reduce"], key=lambda row: row.nbytes)
    floors = {
        "all_to_all_base_s": median(row.time_s for row in small["all_to_all"]),
        "collective_launch_s": smallest.time_s - run_one(plain, "all_reduce", smallest.nbytes).time_s,
    }
    return with_constants(plain, floors, "the rows below 1 MiB")


def from_1_mib(kind):
    return [row for row in A100 if row.kind == kind and row.nbytes >= MIB]


def test_accuracy_on_8_a100():
    table = [line(f"{kind}, from 1 MiB", from_1_mib(kind), one_process) for kind in ("all_to_all", "all_reduce")]
    print("\n\n8 x A100-SXM4-40GB, one process\n")
    print(tabulate(table, headers=["rows", "number", "median error", "worst error"], tablefmt="github"))


@pytest.mark.parametrize(("kind", "limit"), [("all_to_all", 0.08), ("all_reduce", 0.12)])
def test_errors_on_8_a100_stay_within_their_limits(kind, limit):
    assert np.median(sizes_of_errors(relative_errors(one_process, from_1_mib(kind)))) <= limit
