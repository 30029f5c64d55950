"""Time of a 4,000-table plan on 1,024 ranks, from the scenario to the report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

LARGE = Path(__file__).parent.parent / "simulator" / "test_large_plans.py"


def test_report_of_four_thousand_tables(benchmark: Any) -> None:
    """The same script as the memory test, in a process of its own, its start included."""
    source = LARGE.read_text(encoding="utf-8").split('SCRIPT = """')[1].split('"""')[0]
    benchmark.pedantic(subprocess.run, args=([sys.executable, "-c", source],), kwargs={"check": True}, rounds=2)
