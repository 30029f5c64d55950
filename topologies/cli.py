"""The command `foreshard`, assembled from the commands of every room that is installed."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from importlib.metadata import EntryPoint, entry_points, version

import click

from foreshard.topologies.errors import ForeshardError, InputError

__all__ = ["ENTRY_POINTS", "Assembled", "assemble", "main"]

ENTRY_POINTS = "foreshard.commands"
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_MISTAKES_SHOWN = 50  # of one file; whoever calls foreshard from Python has all in InputError.problems
BROKEN_PIPE = 1  # what click exits with when it meets the broken pipe first


class Assembled(click.Group):
    """A group of commands that remembers which rooms could not give theirs, and why."""

    def __init__(self) -> None:
        super().__init__("foreshard", help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
        self.missing: dict[str, str] = {}
        click.version_option(version("foreshard"), prog_name="foreshard")(self)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; where there is none, say which rooms are missing, as it may be one of theirs."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError("\n".join([error.message, *self._apologies()]), ctx) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the rooms whose commands are missing under the list of commands."""
        formatter.write_paragraph()
        for line in self._apologies():
            formatter.write_text(line)

    def _apologies(self) -> list[str]:
        return [f"The commands of {room} are not available: {why}" for room, why in sorted(self.missing.items())]


_HELP = "Predict one training step of an embedding-heavy recommender on a GPU cluster before anyone rents it."


def assemble() -> Assembled:
    """Return the command with the commands of every room whose module can be imported."""
    group = Assembled()
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            commands = _commands(point)
        except Exception as error:  # one broken or half-installed room must not take the others' commands with it
            group.missing[point.name] = _reason(error)
            continue
        for command in commands:
            group.add_command(command)
    return group


def _commands(point: EntryPoint) -> list[click.Command]:
    commands = point.load()
    if not all(isinstance(command, click.Command) for command in commands):
        raise TypeError(f"{point.value} is not a list of click commands")
    return list(commands)


def _reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        own = error.name.startswith("foreshard.")
        return f"this foreshard has no {error.name}" if own else f"the package {error.name} is not installed"
    return f"{type(error).__name__}: {error}"


def main() -> None:
    """Run `foreshard` and exit.

    Codes: 0 done, 2 for a mistake of the user's, 130 interrupted, 1 if the reader of a pipe went away.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a table's name may not exist in the terminal's encoding
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str], command: click.Command | None = None) -> int:
    """Run foreshard, or another command, with these arguments and return its exit code; user errors go to stderr as
    "error: ..."."""
    try:
        command = command or assemble()
        code = command.main(arguments, prog_name="foreshard", standalone_mode=False)
        sys.stdout.flush()
    except ForeshardError as error:
        text = error.told(_MISTAKES_SHOWN) if isinstance(error, InputError) else str(error)
        click.echo(f"error: {_plain(text)}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return ForeshardError.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except OSError as error:  # a full disk, a name that is too long, a file that went away meanwhile
        _silence_stdout()
        file = f"{error.filename!r}: " if error.filename else "writing the output failed: "
        click.echo(f"error: {file}{error.strerror or error}", err=True)
        return ForeshardError.exit_code
    return code if isinstance(code, int) else 0


def _plain(text: str) -> str:
    """The text without what a terminal would obey: given names may stand in it."""
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain either."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
