"""A thread on every rank that ends the run, in seconds and with one sentence, when any rank dies, hangs or fails.

Every rank publishes where it is and looks for a verdict; the first verdict anyone publishes holds for all. A rank that
raises publishes its own. Ranks on one machine see each other's processes end. A rank whose loop does not get on asks
where the others are: those furthest behind are what the rest waits for. Python's main thread may be stuck in a
collective, so that signals reach this thread through a file descriptor, and the process ends from here.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any, NoReturn

from foreshard.calibration.launch import verdict as verdicts
from foreshard.calibration.launch.board import Board, Sign, StoreGoneError
from foreshard.calibration.launch.peers import Peer, Process
from foreshard.calibration.launch.place import Place
from foreshard.calibration.launch.progress import Position, Progress
from foreshard.calibration.launch.verdict import Verdict

__all__ = ["Watchdog"]

_INTERVAL_S = 0.2  # between two looks: three requests to the store a rank
_GRACE_S = 3.0  # how long a failed collective waits for its reason, and the dying until everyone has heard
_SETUP_FACTOR = 10  # outside of steps a rank may be silent so much longer: it fills tables of many GB
_PAUSE = 0.5  # a watchdog that did not look for such a share of the hang limit was stopped with its rank
_WATCH_FROM = 0.25  # share of the hang limit after which a rank begins to watch the others
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Watchdog:
    """Watches one rank's run over a store connection of its own; start it in the main thread, close it at the end."""

    def __init__(
        self, place: Place, process: Process, board: Board, progress: Progress, *, hang_limit_s: float
    ) -> None:
        self._place = place
        self._process = process
        self._board = board
        self._progress = progress
        self._limit_s = hang_limit_s
        self._parent = os.getppid()
        self._looked_s = self._awake_s = time.perf_counter()
        self._wakeup, self._woken = socket.socketpair()
        self._closing = False
        self._peers: dict[int, Peer] = {}
        first = place.rank - place.local_rank
        self._unknown = set(range(first, first + place.local_world_size)) - {place.rank}
        self._holder: Position | None = None  # where rank 0 was, if it holds the store
        self._seen: dict[int, tuple[Position, float]] = {}
        self._handlers: dict[signal.Signals, Any] = {}
        self._thread = threading.Thread(target=self._watch, name="foreshard-watchdog", daemon=True)

    # -- for the main thread -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Take over SIGINT and SIGTERM and begin to watch."""
        self._wakeup.setblocking(False)
        self._handlers = {which: signal.signal(which, _heeded_elsewhere) for which in _SIGNALS}
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        self._board.enter(self._process)
        self._board.show(self._progress.at)
        self._thread.start()

    def meet(self) -> None:
        """Return when the ranks on this machine, all of which have come, are watched, or after a short while."""
        self._wakeup.send(b"\0")
        until = time.perf_counter() + _GRACE_S
        while self._unknown and time.perf_counter() < until:
            time.sleep(_INTERVAL_S / 40)

    def failed(self, error: BaseException) -> NoReturn:
        """End the run since this rank cannot go on; where another rank is the reason, that one is named."""
        position = self._progress.at
        try:
            if position.needs_others and isinstance(error, RuntimeError):
                silent = self._silent(_GRACE_S)  # meanwhile the thread ends the process if there is a verdict
                self._board.sentence(verdicts.symptom(self._place.rank, position, error, silent))
            else:
                found = verdicts.raised(self._place.rank, position, error)
                if found.code == verdicts.CRASHED:
                    traceback.print_exception(error)
                self._board.sentence(found)
        except StoreGoneError:  # the thread finds it too
            time.sleep(_GRACE_S)
        self._thread.join()
        os._exit(verdicts.CRASHED)

    def close(self) -> None:
        """The rank is done: what happens to others from now on is not its concern."""
        self._closing = True
        with suppress(StoreGoneError):
            self._board.leave()
            self._outlive_others()
        self._wakeup.send(b"\0")
        self._thread.join()
        signal.set_wakeup_fd(-1)
        for which, handler in self._handlers.items():
            signal.signal(which, handler)
        for peer in self._peers.values():
            peer.close()
        self._wakeup.close()
        self._woken.close()

    def _outlive_others(self) -> None:
        """Whoever holds the store stays until all others have left."""
        if self._place.rank or self._place.agent_holds_store:
            return
        until = time.perf_counter() + self._limit_s
        while not self._board.all_left() and time.perf_counter() < until:
            time.sleep(_INTERVAL_S / 4)

    def _silent(self, seconds: float) -> list[int]:
        """Ranks that gave no sign of life for so long."""
        before = self._board.signs()
        time.sleep(seconds)
        return [rank for rank, sign in self._board.signs().items() if rank in before and sign == before[rank]]

    # -- the thread --------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while not self._closing:
                self._look()
        except StoreGoneError:
            if not self._closing:
                self._finish(self._without_store())
        except Exception as error:  # a run must not go on without its watchdog
            traceback.print_exception(error)
            self._finish(verdicts.raised(self._place.rank, self._progress.at, error))

    def _without_store(self) -> Verdict:
        """Whoever holds the store is gone: rank 0 where torchrun does not."""
        if self._place.agent_holds_store:
            return verdicts.store_gone("the launcher", None)
        self._wait(_INTERVAL_S)
        holder = self._peers.get(0)
        if holder is not None and holder.gone:
            return verdicts.died(0, holder.position or self._holder)
        return verdicts.store_gone("rank 0", self._holder)

    def _look(self) -> None:
        """One round: signals and processes that ended, then the store, then whether anything moves."""
        signals = self._wait(_INTERVAL_S)
        if self._closing:
            return
        self._notice_pause()
        self._heed(signals)
        self._board.show(self._progress.at)
        if self._place.rank and not self._place.agent_holds_store and (sign := self._board.sign(0)):
            self._holder = sign.position
        self._obey()
        self._find_neighbours()
        self._accuse_dead()
        if os.getppid() != self._parent:
            self._finish(verdicts.launcher_gone())
        self._accuse_hanging()

    def _notice_pause(self) -> None:
        """A run that was stopped and goes on (Ctrl-Z and fg) has not hung meanwhile: ages count from then on."""
        now = time.perf_counter()
        if now - self._looked_s > max(_GRACE_S, _PAUSE * self._limit_s):
            self._awake_s = now
        self._looked_s = now

    def _wait(self, seconds: float) -> bytes:
        """Sleep, unless a signal comes or a process on this machine ends; the numbers of the signals."""
        watched = {peer.handle: peer for peer in self._peers.values() if peer.handle >= 0}
        ready, _, _ = select.select([self._woken.fileno(), *watched], [], [], seconds)
        for handle in watched.keys() & set(ready):
            watched[handle].gone = True
        return self._woken.recv(64) if self._woken.fileno() in ready else b""

    def _obey(self) -> None:
        """End the process if there is a verdict."""
        if (found := self._board.verdict()) is not None:
            self._finish(found)

    def _heed(self, signals: bytes) -> None:
        """End because the user wants so, or because torchrun does: then a rank has died, and is found first."""
        if signal.SIGINT in signals:
            self._leave("interrupted", signal.SIGINT)
        if signal.SIGTERM in signals:
            until = time.perf_counter() + _GRACE_S / 3
            while time.perf_counter() < until:
                self._obey()
                self._accuse_dead()
                self._wait(_INTERVAL_S / 4)
            self._leave("ended from outside (SIGTERM)", signal.SIGTERM)

    # -- the dead and the hanging ------------------------------------------------------------------------------

    def _find_neighbours(self) -> None:
        """Begin to watch the processes of ranks on this machine that have come by now."""
        for rank in sorted(self._unknown):
            if (process := self._board.process(rank)) is not None:
                self._unknown.discard(rank)
                if Peer.can_watch(process):
                    self._peers[rank] = Peer(rank, process)

    def _accuse_dead(self) -> None:
        for peer in [peer for peer in self._peers.values() if peer.gone]:
            if not self._board.has_left(peer.rank):
                sign = self._board.sign(peer.rank)
                self._board.sentence(verdicts.died(peer.rank, peer.position or (sign and sign.position)))
                self._obey()
            peer.close()
            del self._peers[peer.rank]

    def _accuse_hanging(self) -> None:
        """If this rank does not get on, find out whom it waits for; whoever is first publishes it."""
        at = self._progress.at
        stopped = {rank for rank, peer in self._peers.items() if peer.stopped} if not at.in_step else set()
        limit = self._limit_s * (1 if at.in_step or stopped else _SETUP_FACTOR)
        own_age = time.perf_counter() - max(at.since_s, self._awake_s)
        if own_age < limit * _WATCH_FROM:
            self._seen.clear()
            return
        signs = {rank: self._exactly(rank, sign) for rank, sign in self._board.signs().items()}
        ages = {rank: self._age(rank, sign) for rank, sign in signs.items()}
        if own_age < limit or not signs:
            return
        least = min(sign.position.order for sign in signs.values())
        late = {rank: sign.position for rank, sign in signs.items() if sign.position.order == least}
        if any(ages[rank] < limit * (1 - _WATCH_FROM) for rank in late) or (stopped and not late.keys() <= stopped):
            return
        if len(late) == len(signs):
            self._board.sentence(verdicts.stalled(at, len(signs), limit))
        else:
            others = {rank: sign.position for rank, sign in signs.items() if rank not in late}
            self._board.sentence(verdicts.hangs(late, others, limit))

    def _exactly(self, rank: int, sign: Sign) -> Sign:
        """A sign of life with the position that a rank on this machine has now."""
        position = self._peers[rank].position if rank in self._peers else None
        if position is None:
            return sign
        return replace(sign, position=position, age_s=time.perf_counter() - position.since_s)

    def _age(self, rank: int, sign: Sign) -> float:
        """Seconds a rank has been where it is: as it says, or as long as we have seen it there if it is mute."""
        now = time.perf_counter()
        if rank not in self._seen or self._seen[rank][0] != sign.position:
            self._seen[rank] = (sign.position, now)
        return min(max(sign.age_s, now - self._seen[rank][1]), now - self._awake_s)

    # -- the end -----------------------------------------------------------------------------------------------

    def _finish(self, found: Verdict) -> NoReturn:
        """Say why the run ends, wait until all have heard it, end neighbours that do not answer, and this process."""
        self._tell(f"error: {found.sentence}")
        with suppress(StoreGoneError):
            self._board.hear()
            deaf = set(range(self._place.world_size)) - {peer.rank for peer in self._peers.values() if peer.gone}
            until = time.perf_counter() + _GRACE_S
            while (deaf := self._board.deaf(deaf)) and time.perf_counter() < until:
                time.sleep(_INTERVAL_S / 4)
            for rank in deaf & self._peers.keys():
                self._peers[rank].kill()
        self._end(found.code)

    def _leave(self, why: str, which: signal.Signals) -> NoReturn:
        self._tell(f"{why} in {self._progress.at.words()}")
        self._end(128 + which)

    def _tell(self, sentence: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"[rank {self._place.rank}] {sentence}\n")
            sys.stderr.flush()

    def _end(self, code: int) -> NoReturn:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


def _heeded_elsewhere(number: int, frame: FrameType | None) -> None:
    """The thread reads the signal's number from the file descriptor."""
