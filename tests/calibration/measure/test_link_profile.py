"""Measured links as a profile, alone and laid into a file that has other parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foreshard.calibration.measure.link_profile import link_profile
from foreshard.calibration.measure.link_records import Beside, LinkRecord, Settings, Wire
from foreshard.calibration.measure.link_report import link_rows, link_text
from foreshard.calibration.measure.profile_parts import lay_into, merged
from foreshard.simulator.measured.profile import WorkFit
from foreshard.simulator.measured.profile_file import read_profile
from foreshard.topologies.errors import InputError

SETTINGS = Settings(
    backend="gloo", device="cpu", device_name="a core", hardware="2 cores", versions={"torch": "2.13.0"},
    node_of=(0, 0, 1, 1), bed="testbed 2x2", pinned=True,
)  # fmt: skip
KIB = 1 << 10


def world(kind, nbytes, *times, **more):
    return LinkRecord(kind=kind, ranks_per_node=(2, 2), nbytes=nbytes, times_s=times, **more)


RECORDS = [
    world("all_reduce", 64 * KIB, 4e-3, 5e-3, 6e-3),
    world("all_reduce", 8 * KIB, 1e-3),
    world("all_to_all", 8 * KIB, 1e-3),
    world("all_to_all", 8 * KIB, 2e-3, pattern="skewed"),
    *(
        LinkRecord(kind="send_recv", ranks_per_node=(1, 1), nbytes=n, times_s=(1e-4 + n / 1e8,), ranks=(0, 2))
        for n in (KIB, 64 * KIB, 4096 * KIB)
    ),
]
PROFILE = link_profile(SETTINGS, RECORDS, name="bed", command="foreshard calibrate links")


def test_points_become_curves_in_order_of_size_without_the_uneven_ones():
    """Two curves and a pair with its fit; provenance says what, where, and how outliers were told."""
    assert [(curve.kind, [point.nbytes for point in curve.points]) for curve in PROFILE.collectives] == [
        ("all_reduce", [8 * KIB, 64 * KIB]),
        ("all_to_all", [8 * KIB]),
    ]
    assert PROFILE.collectives[0].points[1].median_s == 5e-3
    (pair,) = PROFILE.pairs
    assert (pair.where, pair.ranks) == ("other_node", (0, 2))
    assert pair.latency_s == pytest.approx(1e-4, rel=1e-3)
    assert pair.bytes_per_s == pytest.approx(1e8, rel=1e-3)
    (provenance,) = PROFILE.provenance
    assert provenance.hardware == "2 cores, testbed 2x2, ranks pinned"
    assert "outliers" in " ".join(provenance.notes)


def test_a_profile_is_written_and_read_back(tmp_path):
    """Equal, and a second time over the first."""
    path = tmp_path / "bed.json"
    assert lay_into(path, PROFILE) == PROFILE
    assert read_profile(path) == PROFILE
    assert lay_into(path, PROFILE) == PROFILE


def test_new_links_leave_the_work_that_was_measured_before(tmp_path):
    """Parts that were not measured again stay; those that were take the place of the old ones."""
    work = WorkFit(kind="copy_in", features=("bytes",), coefficients=(1e-9,), residuals=())
    older = replace(PROFILE, collectives=PROFILE.collectives[:1], work=(work,), provenance=(
        replace(PROFILE.provenance[0], name="device"), replace(PROFILE.provenance[0], created="2020-01-01"),
    ))  # fmt: skip
    whole = merged(older, PROFILE)
    assert whole.work == (work,)
    assert whole.collectives == PROFILE.collectives
    assert [(it.name, it.created) for it in whole.provenance] == [
        ("device", PROFILE.provenance[0].created),
        ("links", PROFILE.provenance[0].created),
    ]


def test_parts_of_two_machines_are_not_mixed(tmp_path):
    """Every difference is told, and the file stays."""
    path = tmp_path / "bed.json"
    lay_into(path, PROFILE)
    other = replace(PROFILE, device_name="another core", ranks_per_node=(4,))
    with pytest.raises(InputError) as caught:
        lay_into(path, other)
    assert len(caught.value.problems) == 2
    assert read_profile(path) == PROFILE


def test_rows_have_the_bandwidths_of_nccl_tests():
    """algbw is size over time; busbw of all_reduce over four ranks 1.5 times as much, of send and receive the same."""
    rows = {(row["kind"], row["bytes"]): row for row in link_rows(PROFILE)}
    reduced = rows["all_reduce", 64 * KIB]
    assert reduced["algbw_bytes_per_s"] == 64 * KIB / 5e-3
    assert reduced["busbw_bytes_per_s"] == 1.5 * reduced["algbw_bytes_per_s"]
    sent = rows["send_recv", KIB]
    assert sent["busbw_bytes_per_s"] == sent["algbw_bytes_per_s"]


@pytest.mark.parametrize(("sent", "said"), [(1.503, False), (0.75, True)])
def test_the_report_says_where_the_model_moves_other_bytes_than_the_interfaces(sent, said):
    """An all_reduce over 2+2 ranks sends 1.5 times its size out of each node; half of that is another algorithm."""
    each = (sent * 64 * KIB,) * 2
    counted = replace(RECORDS[0], wire=Wire(sent=each, received=each, looped=(1.5 * 64 * KIB,) * 2))
    text = link_text(SETTINGS, [counted, *RECORDS[1:]], PROFILE, 0)
    assert ("the model moves other bytes" in text) is said


def test_the_report_holds_every_point_and_fit():
    """A table a curve, a line a fit, the uneven one beside what the even ones say."""
    text = link_text(SETTINGS, RECORDS, PROFILE, 0)
    assert "all_reduce, 2+2 ranks\n" in text
    assert "send and receive, ranks 0 and 2 of other node\n" in text
    assert "skewed" in text
    assert "gloo_step_s" in text


def test_work_beside_collectives_is_told_by_all_sizes_together():
    """6 s of work that take 4 s alone, at two sizes: 1.5 times as long at both; sizes without it have no such point."""
    records = [
        world("all_reduce", 8 * KIB, 1e-3, beside=Beside(times_s=(4e-3, 6e-3), worked_s=2.0, alone_s=1.0)),
        world("all_reduce", 32 * KIB, 2e-3),
        world("all_reduce", 64 * KIB, 5e-3, beside=Beside(times_s=(8e-3,), worked_s=4.0, alone_s=3.0)),
    ]
    profile = link_profile(SETTINGS, records, name="bed", command="foreshard calibrate links")
    (curve,) = profile.collectives
    assert [(point.nbytes, point.median_s, point.slows) for point in curve.beside] == [
        (8 * KIB, 5e-3, 1.5),
        (64 * KIB, 8e-3, 1.5),
    ]
    table = link_text(SETTINGS, records, profile, seed=0)
    told = [line.split()[-4:] for line in table.splitlines() if line.endswith("1.50")]
    assert told == [["5000.0", "1000.0", "5.0", "1.50"], ["8000.0", "5000.0", "1.6", "1.50"]]


def test_work_that_collectives_leave_alone_takes_as_long_as_ever():
    """Measured a little shorter than alone: noise, and no reason to predict quicker work."""
    records = [world("all_reduce", 8 * KIB, 1e-3, beside=Beside(times_s=(2e-3,), worked_s=0.9, alone_s=1.0))]
    (curve,) = link_profile(SETTINGS, records, name="bed", command="foreshard calibrate links").collectives
    assert curve.beside[0].slows == 1.0
