"""One rank's part in a run, from joining to the end: the store, the watchdog, the agreement, the world.

    with Session.join(Limits()) as session:
        session.agree(terms)
        world = session.world()
        ...

An error that leaves the block ends the run on every rank and this process with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from foreshard.calibration.launch.agreement import agree
from foreshard.calibration.launch.board import Board, open_store
from foreshard.calibration.launch.peers import Process
from foreshard.calibration.launch.place import Place
from foreshard.calibration.launch.position_memory import PositionMemory
from foreshard.calibration.launch.progress import Progress
from foreshard.calibration.launch.terms import Terms
from foreshard.calibration.launch.watchdog import Watchdog
from foreshard.calibration.launch.world import BackendName, World

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["Limits", "Session"]

_BACKSTOP = 2.0  # torch.distributed's own timeout, should the watchdog fail, as a multiple of the hang limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Seconds without any progress in a step after which a run ends, and for all ranks to join."""

    hang_s: float = 30.0
    join_s: float = 60.0


class Session:
    """A rank's connection to its run; a context manager. `progress` is what the watchdog reads."""

    def __init__(self, place: Place, limits: Limits, store: dist.Store) -> None:
        self.place = place
        self.limits = limits
        self.store = store
        memory = PositionMemory() if PositionMemory.can_be() else None
        self.progress = Progress(memory.write if memory else None)
        board = Board(place, open_store(place, wait_s=limits.join_s, own=True))
        process = Process.own(memory.handle if memory else -1)
        self._watchdog = Watchdog(place, process, board, self.progress, hang_limit_s=limits.hang_s)
        self._world: World | None = None

    @classmethod
    def join(cls, limits: Limits, place: Place | None = None) -> Session:
        """Connect to the store of the run. Raises InputError where the environment or the store is missing."""
        place = place or Place.from_environment()
        return cls(place, limits, open_store(place, wait_s=limits.join_s))

    def __enter__(self) -> Session:
        self._watchdog.start()
        return self

    def agree(self, terms: Terms) -> None:
        """Return when all ranks have the same terms. Raises InputError on all ranks if not, or if some do not come."""
        self.progress.phase("agreeing with the other ranks")
        agree(self.store, self.place.rank, self.place.world_size, terms, join_limit_s=self.limits.join_s)
        self._watchdog.meet()

    def world(self, backend: BackendName | None = None) -> World:
        """Connect to the other ranks; all ranks call it together."""
        self.progress.phase("connecting to the other ranks", talking=True)
        timeout_s = max(_BACKSTOP * self.limits.hang_s, self.limits.join_s)
        self._world = World(self.place, self.store, timeout_s=timeout_s, backend=backend)
        self._watchdog.meet()
        return self._world

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._watchdog.failed(error)
        if self._world is not None:
            self._world.close()
        self._watchdog.close()
