"""The command line: assembled from rooms, a room that fails takes no other with it, mistakes end in one line and 2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from foreshard.topologies import cli
from foreshard.topologies.errors import InputError


class Point:
    """An entry point that gives or raises what it was made with."""

    def __init__(self, name: str, found: object) -> None:
        self.name, self.value, self.found = name, f"{name}:COMMANDS", found

    def load(self) -> object:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def command(name: str, action: Callable[[], object]) -> click.Command:
    return click.Command(name, callback=action)


def refuse() -> None:
    raise InputError(["one thing", "another thing"], where="job.toml")


def interrupt() -> None:
    raise KeyboardInterrupt


def hang_up() -> None:
    raise BrokenPipeError


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        Point("whole", [command("hello", lambda: click.echo("hi")), command("refuse", refuse)]),
        Point("endings", [command("interrupt", interrupt), command("hang-up", hang_up)]),
        Point("absent", ModuleNotFoundError("No module named 'torch'", name="torch")),
        Point("broken", RuntimeError("no driver")),
        Point("wrong", ["hello"]),
    ]
    monkeypatch.setattr(cli, "entry_points", lambda group: points)


@pytest.mark.usefixtures("rooms")
class TestRooms:
    def test_a_room_that_cannot_be_imported_does_not_kill_the_others(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["hello"]) == 0
        assert capsys.readouterr() == ("hi\n", "")

    def test_help_says_plainly_which_room_is_missing_and_why(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["--help"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "The commands of absent are not available: the package torch is not installed" in text
        assert "The commands of broken are not available: RuntimeError: no driver" in text
        assert "The commands of wrong are not available: TypeError: wrong:COMMANDS is not a list of click" in text

    def test_an_unknown_command_may_be_one_of_a_missing_room(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["calibrate"]) == 2
        assert "the package torch is not installed" in capsys.readouterr().err

    def test_a_mistake_goes_to_stderr_with_code_2(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["refuse"]) == 2
        assert capsys.readouterr() == ("", "error: job.toml: 2 mistakes:\n  - one thing\n  - another thing\n")

    def test_an_unknown_option_exits_with_2(self) -> None:
        assert cli.run(["hello", "--nope"]) == 2

    def test_an_interrupt_exits_with_130(self) -> None:
        assert cli.run(["interrupt"]) == 130

    def test_a_reader_that_goes_away_is_no_error_to_report(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            sys.exit(cli.run(["hang-up"]))
        assert ended.value.code == 1
        assert capsys.readouterr().err == ""


def foreshard(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from foreshard.topologies.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_version_is_that_of_the_installed_distribution() -> None:
    assert foreshard("--version").stdout.startswith("foreshard, version ")


def test_a_closed_pipe_leaves_no_traceback() -> None:
    script = f"{sys.executable} -c 'from foreshard.topologies.cli import main; main()' --help | true"
    done = subprocess.run(script, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def fill_the_disk() -> None:
    raise OSError(28, "No space left on device")


def lose_a_file() -> None:
    raise OSError(36, "File name too long", "x" * 300)


@pytest.mark.parametrize("action", [fill_the_disk, lose_a_file])
def test_an_error_of_the_system_is_one_sentence_and_2(
    action: Callable[[], object], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A full disk or a name that is too long ends in a sentence, whatever command meets it."""
    monkeypatch.setattr(cli, "entry_points", lambda group: [Point("room", [command("act", action)])])
    monkeypatch.setattr(cli, "_silence_stdout", lambda: None)  # it would silence pytest's
    assert cli.run(["act"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_what_a_terminal_obeys_is_escaped_in_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def act() -> None:
        raise InputError(["no \x1b[31mtable", "é\tand\u202e"])

    monkeypatch.setattr(cli, "entry_points", lambda group: [Point("room", [command("act", act)])])
    assert cli.run(["act"]) == 2
    assert capsys.readouterr().err == "error: 2 mistakes:\n  - no \\x1b[31mtable\n  - é\tand\\u202e\n"


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", LONG],
        ["predict", f"{LONG}.toml"],
        ["predict", "capacity-640gb", "--set", f"workload.tables={LONG}.toml"],
        ["predict", "capacity-640gb", "--set", f"cluster.file={LONG}.toml"],
        ["predict", "capacity-640gb", "--set", f"workload.replay.file={LONG}.csv"],
        ["predict", "capacity-640gb", "--plot", f"{LONG}.png"],
        ["predict", "capacity-640gb", "--trace", LONG],
        ["compare", "capacity-640gb", "--vary", "cluster.nodes=1", "--csv", f"{LONG}.csv"],
        ["cluster", LONG],
        ["cluster", f"{LONG}.toml"],
        ["cluster", "dgx-h100", "--plot", f"{LONG}.png"],
        ["import-topology", LONG, "-o", "out.toml"],
        ["import-plan", LONG, "-o", "out.json"],
        ["export-plan", LONG, "-o", "out.py"],
        ["collective", "--cluster", LONG, "--kind", "all_reduce", "--bytes", "1MiB"],
        ["collective", "--cluster", "dgx-h100", "--kind", "all_reduce", "--compare", LONG],
    ],
    ids=lambda arguments: " ".join(arguments).replace(LONG, "LONG"),
)
def test_a_name_that_is_too_long_is_one_sentence(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Wherever a file is named, a name that no file can have is told, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_silence_stdout", lambda: None)
    assert cli.run(arguments) == 2
    out, said = capfd.readouterr()
    assert not out
    assert said.startswith("error: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_sentence() -> None:
    """Output that cannot be written is told on stderr, also when the interpreter flushes last."""
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-c", "from foreshard.topologies.cli import main; main()", "presets", "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr == "error: writing the output failed: No space left on device\n"
