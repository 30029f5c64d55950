"""Output files: whole or not at all, and an unwritable path is refused first."""

from __future__ import annotations

from pathlib import Path

import pytest

from foreshard.topologies.errors import InputError
from foreshard.topologies.output import check_folder, check_writable, replaced, write_text


def test_a_file_appears_only_when_all_of_it_is_written(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    with replaced(target) as part:
        part.write_text("half")
        assert not target.exists()
        assert part.suffix == ".json"
    assert target.read_text() == "half"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    write_text(target, "old")

    def fail() -> None:
        with replaced(target) as part:
            part.write_text("new")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_unwritable_path_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, why in [
        (tmp_path, "is a folder"),
        (tmp_path / "absent" / "out.json", "does not exist: create it"),
        (tmp_path / "file" / "out.json", "does not exist"),
        (Path("/dev/null"), "is not a regular file"),
        (Path("/proc/out.json"), "cannot be written"),
    ]:
        with pytest.raises(InputError, match=why):
            check_writable(path)


def test_a_folder_is_made_and_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file: name a folder"):
        check_folder(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be created"):
        check_folder(tmp_path / "file" / "below")
