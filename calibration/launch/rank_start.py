"""Runs a module as a rank: `python -m foreshard.calibration.launch.rank_start MODULE ARGUMENTS...`.

Loading torch takes seconds, in which Python would answer an interrupt with a traceback from every rank.
"""

from __future__ import annotations

import runpy
import signal
import sys

__all__: list[str] = []


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the rank joins, whose watchdog heeds it from then on
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
