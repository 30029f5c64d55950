"""The order in which points are measured: none twice, and none that would take too long."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from foreshard.calibration.measure.link_records import LinkRecord
from foreshard.calibration.measure.links_worker import _measure


def record(kind, nbytes, *times_s):
    return LinkRecord(kind=kind, ranks_per_node=(2,), nbytes=nbytes, times_s=times_s)


class Bench:
    """Two curves of three sizes and one of none; a byte takes a second, of which a run may take 15."""

    def __init__(self):
        self.measured = []

    def curves(self):
        for kind in ("all_reduce", "all_gather"):
            yield [SimpleNamespace(record=record(kind, nbytes), label=kind) for nbytes in (4, 8, 16)]
        yield []

    def too_long(self, last, nbytes):
        return last.times_s[0] * nbytes / last.nbytes > 15.0

    def measure(self, task):
        self.measured.append((task.record.kind, task.record.nbytes))
        return replace(task.record, times_s=(float(task.record.nbytes),))


class Kept(list):
    add = list.append


def test_a_curve_ends_before_the_size_that_would_take_too_long():
    bench, kept = Bench(), Kept()
    _measure(bench, kept, {})
    assert bench.measured == [("all_reduce", 4), ("all_reduce", 8), ("all_gather", 4), ("all_gather", 8)]
    assert [(one.kind, one.nbytes) for one in kept] == bench.measured


def test_what_an_earlier_run_finished_is_not_measured_again_and_still_tells_what_takes_too_long():
    """Its 8 bytes took 5 s, so that 16 are tried."""
    bench, kept = Bench(), Kept()
    known = {one.key: one for one in (record("all_reduce", 4, 4.0), record("all_reduce", 8, 5.0))}
    _measure(bench, kept, known)
    assert bench.measured == [("all_reduce", 16), ("all_gather", 4), ("all_gather", 8)]
    assert len(kept) == 3
