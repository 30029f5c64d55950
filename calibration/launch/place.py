"""Where a process stands among the ranks of a run, as torchrun (or anyone who sets the same variables) tells it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from foreshard.topologies.errors import InputError

__all__ = ["Place"]

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MOST_PORT = 65535


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Rank of this process, ranks in all and on this node, and the address of the store where they meet.

    Nodes may have different numbers of ranks, each those that follow the node's first. `attempt` counts restarts by
    torchrun. `agent_holds_store`: torchrun itself serves the store, not rank 0.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int
    node: int = 0
    attempt: int = 0
    agent_holds_store: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Place:
        """Read RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK (the node).

        Without LOCAL_... all ranks are taken to be on one node, without GROUP_RANK nodes to have equally many. Raises
        InputError with every variable that is missing or wrong.
        """
        given = os.environ if environment is None else environment
        missing = [name for name in _NEEDED if not given.get(name)]
        if missing:
            raise InputError(
                f"{', '.join(missing)} not set: start the ranks with `foreshard run SCENARIO --nproc N`, with "
                "`torchrun --nproc-per-node N -m foreshard.calibration.run SCENARIO`, or set these variables yourself"
            )
        problems: list[str] = []
        rank, world_size = _number(given, "RANK", problems), _number(given, "WORLD_SIZE", problems)
        local_world_size = _number(given, "LOCAL_WORLD_SIZE", problems, world_size)
        place = cls(
            rank=rank,
            world_size=world_size,
            local_rank=_number(given, "LOCAL_RANK", problems, rank),
            local_world_size=local_world_size,
            node=_number(given, "GROUP_RANK", problems, rank // max(local_world_size, 1)),
            master_addr=given["MASTER_ADDR"],
            master_port=_number(given, "MASTER_PORT", problems),
            attempt=_number(given, "TORCHELASTIC_RESTART_COUNT", problems, 0),
            agent_holds_store=given.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
        problems += place.mistakes() if not problems else ()
        if problems:
            raise InputError(problems, where="environment")
        return place

    def mistakes(self) -> list[str]:
        """A sentence for each pair of numbers that cannot be together."""
        found = []
        if not 0 <= self.rank < self.world_size:
            found.append(
                f"RANK = {self.rank} with WORLD_SIZE = {self.world_size}: ranks count from 0 to the size less 1"
            )
        if not 0 <= self.local_rank < self.local_world_size:
            found.append(
                f"LOCAL_RANK = {self.local_rank} with LOCAL_WORLD_SIZE = {self.local_world_size}: out of range"
            )
        elif self.local_rank > self.rank or self.rank + self.local_world_size - self.local_rank > self.world_size:
            found.append(
                f"RANK = {self.rank} and LOCAL_RANK = {self.local_rank} of {self.local_world_size} do not fit into "
                f"WORLD_SIZE = {self.world_size}: the ranks of a node must follow each other"
            )
        if not 0 < self.master_port <= _MOST_PORT:
            found.append(f"MASTER_PORT = {self.master_port}: expected 1 to {_MOST_PORT}")
        return found


def _number(given: Mapping[str, str], name: str, problems: list[str], default: int | None = None) -> int:
    text = given.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        problems.append(f"{name} = {text!r} is not a whole number")
        return 1
