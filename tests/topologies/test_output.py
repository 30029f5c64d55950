"""Output files: whole or not at all, and an unwritable path is refused first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from foreshard.topologies.errors import InputError
from foreshard.topologies.output import check_folder, check_writable, make_folder, replaced, write_text


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


def test_a_folder_is_checked_without_being_made(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    check_folder(tmp_path / "a" / "b")


@pytest.mark.parametrize("refuse", [check_folder, make_folder])
def test_a_file_in_the_place_of_a_folder_is_refused(refuse: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300), Path("/proc/none/below")):
        with pytest.raises(InputError):
            refuse(path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
