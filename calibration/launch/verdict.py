"""How a run ends early: one sentence for all ranks, the first that anyone publishes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from foreshard.calibration.launch.progress import Position
from foreshard.calibration.launch.wording import ranks_named
from foreshard.topologies.errors import DisagreementError, ForeshardError

__all__ = ["CRASHED", "Verdict", "died", "hangs", "launcher_gone", "raised", "stalled", "store_gone", "symptom"]

CRASHED = 1  # exit code of a run that ended early through no mistake in the input


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why the run ends: a sentence that names rank and operation, the exit code, and the ranks at fault."""

    sentence: str
    code: int = CRASHED
    ranks: tuple[int, ...] = ()

    def to_json(self) -> str:
        """As it stands in the store."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Verdict:
        """Read what `to_json` wrote."""
        told = json.loads(text)
        return cls(told["sentence"], told["code"], tuple(told["ranks"]))


def raised(rank: int, position: Position, error: BaseException) -> Verdict:
    """A rank raised an error that is its own, or that all ranks share."""
    if isinstance(error, DisagreementError):
        return Verdict(str(error), error.exit_code)
    if isinstance(error, ForeshardError):
        return Verdict(f"rank {rank}, {position.words()}: {error}", error.exit_code, (rank,))
    return Verdict(f"rank {rank} failed in {position.words()}: {_first_line(error)}", CRASHED, (rank,))


def died(rank: int, position: Position | None) -> Verdict:
    """A rank's process is gone without a word."""
    where = f"in {position.words()}" if position else "before it said where it was"
    return Verdict(
        f"rank {rank} died {where}: its process was killed or crashed; was it out of memory (dmesg tells)?",
        CRASHED,
        (rank,),
    )


def hangs(late: Mapping[int, Position], waiting: Mapping[int, Position], limit_s: float) -> Verdict:
    """Some ranks are behind and do not get on; the others wait for them."""
    first = min(late)
    others = f"; {ranks_named(sorted(waiting))} wait in {waiting[min(waiting)].words()}" if waiting else ""
    verb = "hangs" if len(late) == 1 else "hang"
    return Verdict(
        f"{ranks_named(sorted(late))} {verb} in {late[first].words()}: nothing moved for {limit_s:g} s (--hang-limit)"
        f"{others}",
        CRASHED,
        tuple(sorted(late)),
    )


def stalled(position: Position, world_size: int, limit_s: float) -> Verdict:
    """All ranks are equally far and nothing moves: the network, or all are stuck alike."""
    doing = "wait" if position.state == "waiting" else "are"
    return Verdict(
        f"all {world_size} ranks {doing} in {position.words()} and nothing moved for {limit_s:g} s (--hang-limit): can "
        "they reach each other on every network interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)?"
    )


def symptom(rank: int, position: Position, error: BaseException, silent: list[int]) -> Verdict:
    """A collective failed on a rank and nobody says why; ranks without a sign of life are the likely reason."""
    why = f"; no sign of life from {ranks_named(silent)}" if silent else ""
    return Verdict(f"{position.words()} failed on rank {rank}: {_first_line(error)}{why}", CRASHED, tuple(silent))


def store_gone(holder: str, position: Position | None) -> Verdict:
    """The store cannot be reached any more."""
    where = f", last seen in {position.words()}" if position else ""
    return Verdict(f"the store that {holder} holds is gone, so {holder} ended or cannot be reached{where}")


def launcher_gone() -> Verdict:
    """The process that started this rank is gone."""
    return Verdict("the launcher of this rank is gone, and nobody waits for its results")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
