"""What the ranks of a run tell each other through the store: where they are, that they end, and why."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from foreshard.calibration.launch.peers import Process
from foreshard.calibration.launch.place import Place
from foreshard.calibration.launch.progress import Position
from foreshard.calibration.launch.verdict import Verdict
from foreshard.topologies.errors import InputError

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["Board", "Sign", "StoreGoneError", "open_store"]

T = TypeVar("T")

_ANSWER_S = 10.0  # what a store that is there needs for an answer at most, however busy
_VERDICT = "end"


class StoreGoneError(RuntimeError):
    """The store does not answer."""


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign of life: the position a rank published, how long it had been there, and a count of its signs."""

    position: Position
    age_s: float
    count: int


def open_store(place: Place, *, wait_s: float, own: bool = False) -> dist.Store:
    """Connect to the store of the run, which torchrun or rank 0 holds; `own` makes a second connection.

    Raises InputError if it is not there within `wait_s`.
    """
    import torch.distributed as dist

    holds = place.rank == 0 and not place.agent_holds_store and not own
    try:
        store = dist.TCPStore(
            place.master_addr, place.master_port, is_master=holds, wait_for_workers=False,
            timeout=timedelta(seconds=wait_s), multi_tenant=True,
        )  # fmt: skip
    except RuntimeError as error:
        holder = "torchrun's store" if place.agent_holds_store else "the store of rank 0"
        why = str(error).strip().splitlines()[0]
        raise InputError(
            f"rank {place.rank} does not reach {holder} at {place.master_addr}:{place.master_port} within {wait_s:g} s "
            f"({why}): start all ranks at about the same time, with MASTER_ADDR a name or address of rank 0's machine"
        ) from None
    return dist.PrefixStore(f"foreshard/{place.attempt}", store)


class Board:
    """One rank's access to the board. Every method raises StoreGoneError if the store does not answer."""

    def __init__(self, place: Place, store: dist.Store) -> None:
        self._place = place
        self._store = store
        self._signs = 0
        store.set_timeout(timedelta(seconds=_ANSWER_S))

    def _ask(self, request: Callable[..., T], *arguments: object) -> T:
        try:
            return request(*arguments)
        except RuntimeError as error:  # torch.distributed's DistNetworkError and DistStoreError
            raise StoreGoneError(str(error)) from error

    def _told(self, key: str) -> bytes | None:
        return self._ask(self._store.get, key) if self._ask(self._store.check, [key]) else None

    def enter(self, process: Process) -> None:
        """This rank is there, as that process."""
        self._ask(self._store.set, f"process/{self._place.rank}", json.dumps(astuple(process)))

    def process(self, rank: int) -> Process | None:
        """The process of another rank, if it has come."""
        told = self._told(f"process/{rank}")
        return None if told is None else Process(*json.loads(told))

    def show(self, position: Position) -> None:
        """Publish where this rank is: a sign of life."""
        self._signs += 1
        sign = [*position, time.perf_counter() - position.since_s, self._signs]
        self._ask(self._store.set, f"at/{self._place.rank}", json.dumps(sign))

    def sign(self, rank: int) -> Sign | None:
        """The last sign of life of a rank, if there is any."""
        told = self._told(f"at/{rank}")
        return None if told is None else _sign(told)

    def signs(self) -> dict[int, Sign]:
        """The last signs of life of all ranks; empty before every rank has come."""
        keys = [f"at/{rank}" for rank in range(self._place.world_size)]
        if not self._ask(self._store.check, keys):
            return {}
        return {rank: _sign(told) for rank, told in enumerate(self._ask(self._store.multi_get, keys))}

    def sentence(self, verdict: Verdict) -> None:
        """Publish why the run ends, unless there is a verdict."""
        self._ask(self._store.compare_set, _VERDICT, "", verdict.to_json())

    def verdict(self) -> Verdict | None:
        """Why the run ends, if it does."""
        told = self._told(_VERDICT)
        return None if told is None else Verdict.from_json(told)

    def hear(self) -> None:
        """This rank has told its verdict."""
        self._ask(self._store.set, f"heard/{self._place.rank}", "1")

    def deaf(self, ranks: Iterable[int]) -> set[int]:
        """Those of `ranks` that have not told the verdict."""
        return {rank for rank in ranks if not self._ask(self._store.check, [f"heard/{rank}"])}

    def leave(self) -> None:
        """This rank is done; that its process ends is no failure."""
        self._ask(self._store.set, f"done/{self._place.rank}", "1")

    def all_left(self) -> bool:
        """Whether all ranks are done."""
        return self._ask(self._store.check, [f"done/{rank}" for rank in range(self._place.world_size)])

    def has_left(self, rank: int) -> bool:
        """Whether a rank is done."""
        return self._ask(self._store.check, [f"done/{rank}"])


def _sign(told: bytes) -> Sign:
    *position, age, count = json.loads(told)
    return Sign(Position(*position), age, count)
