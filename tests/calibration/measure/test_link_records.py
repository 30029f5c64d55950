"""The file of measured points: kept as they come, gone on with, refused where it is of something else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foreshard.calibration.measure.link_records import LinkRecord, RecordFile, Settings, Wire
from foreshard.topologies.errors import InputError

SETTINGS = Settings(
    backend="gloo", device="cpu", device_name="a core", hardware="2 cores", versions={"torch": "2.13.0"},
    node_of=(0, 0, 1),
)  # fmt: skip
RECORDS = [
    LinkRecord(kind="all_reduce", ranks_per_node=(2, 1), nbytes=1024, times_s=(1e-3, 2e-3)),
    LinkRecord(kind="all_to_all", ranks_per_node=(2, 1), nbytes=1024, times_s=(1e-3,), pattern="skewed"),
    LinkRecord(
        kind="all_gather", ranks_per_node=(2, 1), nbytes=2048, times_s=(1e-3,),
        wire=Wire(sent=(1.0, 2.0), received=(2.0, 1.0), looped=(0.0, 0.0)),
    ),
    LinkRecord(kind="send_recv", ranks_per_node=(1, 1), nbytes=4, times_s=(1e-5,), ranks=(0, 2)),
]  # fmt: skip


@pytest.fixture
def file(tmp_path):
    kept = RecordFile(tmp_path / "links.part")
    assert kept.begin(SETTINGS) == []
    for record in RECORDS:
        kept.add(record)
    return kept


def test_what_was_measured_is_there_again(file):
    """Settings and every record, equal."""
    assert RecordFile(file.path).read() == (SETTINGS, RECORDS)
    assert RecordFile(file.path).begin(SETTINGS) == RECORDS
    assert len({record.key for record in RECORDS}) == len(RECORDS)


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_point_that_was_cut_off_is_measured_again(file, cut):
    """All whole lines stay, and what comes next is a line of its own."""
    file.path.write_bytes(file.path.read_bytes()[:-cut])
    again = RecordFile(file.path)
    assert again.begin(SETTINGS) == (RECORDS[:-1] if cut > 1 else RECORDS)
    again.add(RECORDS[-1])
    assert again.read()[1][-1] == RECORDS[-1]


def test_points_of_another_machine_are_not_gone_on_with(file):
    """What differs is named."""
    with pytest.raises(InputError, match=r"versions = .*2\.13\.0.*2\.14"):
        file.begin(replace(SETTINGS, versions={"torch": "2.14"}))
    assert file.read() == (SETTINGS, RECORDS)


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"no JSON\n", b'{"format":"foreshard-links","schema":2}\n', b"\xff\n"]
)
def test_another_file_is_refused(tmp_path, content):
    """And stays as it is."""
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(InputError, match="no file of measured links"):
        RecordFile(path).begin(SETTINGS)
    assert path.read_bytes() == content


def test_a_damaged_line_in_the_middle_is_a_mistake(file):
    """Only the last line may be cut off."""
    lines = file.path.read_bytes().splitlines(keepends=True)
    file.path.write_bytes(b"".join([lines[0], b'{"kind":\n', *lines[2:]]))
    with pytest.raises(InputError, match="no file of measured links"):
        file.read()
