"""The one error tree of foreshard; every error says what was given, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = [
    "BoundViolationError",
    "ContradictionError",
    "DeadlockError",
    "DisagreementError",
    "ForeshardError",
    "InputError",
    "MissingDependencyError",
    "NoRouteError",
    "UnavailableError",
    "UnitError",
    "check_all",
]


class ForeshardError(Exception):
    """Any error foreshard raises on purpose. The command line prints its message and exits with `exit_code`."""

    exit_code = 2


class InputError(ForeshardError, ValueError):
    """What a user gave cannot be used; `problems` lists every mistake found, one sentence each."""

    def __init__(self, problems: str | Iterable[str], *, where: str | None = None) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        self.where = where
        super().__init__(self.told())

    def told(self, most: int | None = None) -> str:
        """Return the message: one mistake in a line, several as a list, of which the first `most` are written out."""
        prefix = f"{self.where}: " if self.where else ""
        if len(self.problems) == 1:
            return prefix + self.problems[0]
        lines = [f"  - {problem}" for problem in self.problems[:most]]
        if len(self.problems) > len(lines):
            lines.append(f"  and {len(self.problems) - len(lines)} more")
        return "\n".join([f"{prefix}{len(self.problems)} mistakes:", *lines])


class ContradictionError(InputError):
    """Parts that are right by themselves cannot be together, as a sharding group that does not divide this world."""


class DisagreementError(InputError):
    """The ranks of a run are about to run different things, or not all of them came."""


class UnitError(InputError):
    """A dimensioned value has no unit, an unknown one or an ambiguous one."""


class NoRouteError(InputError):
    """Two ranks that must talk have no path between them in the cluster's graph."""


class MissingDependencyError(ForeshardError, ImportError):
    """An optional package is needed for what was asked; the message names the extra to install."""


class UnavailableError(ForeshardError, RuntimeError):
    """What was asked for cannot be done on this machine; the message says what is missing and how to get it."""


class DeadlockError(ForeshardError, RuntimeError):
    """A collective was joined by some of its members only; names it, the ranks that wait and those missing."""


class BoundViolationError(ForeshardError, AssertionError):
    """A predicted time lies below its closed-form lower bound: a bug in foreshard, never in the input."""


def check_all(*checks: Callable[[], object] | None) -> None:
    """Return if no check refuses; raises one InputError with every mistake that they name."""
    problems: list[str] = []
    for check in filter(None, checks):
        try:
            check()
        except InputError as error:
            where = f"{error.where}: " if error.where else ""
            problems += [where + problem for problem in error.problems]
    if problems:
        raise InputError(problems)
