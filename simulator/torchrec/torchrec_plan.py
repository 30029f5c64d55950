"""Import a TorchRec plan from whatever a user has of it: its JSON, the planner's objects as JSON, or its log."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foreshard.simulator.job.workload import Table
from foreshard.simulator.torchrec.plan_file import PlanFile, load_json, parse_plan_file
from foreshard.simulator.torchrec.torchrec_build import plan_of_rows
from foreshard.simulator.torchrec.torchrec_bundle import plan_of_bundle
from foreshard.simulator.torchrec.torchrec_json import read_serialized
from foreshard.simulator.torchrec.torchrec_printed import plan_of_report
from foreshard.simulator.torchrec.torchrec_report import is_report, read_report
from foreshard.topologies.errors import InputError

__all__ = ["import_plan", "import_plan_text", "read_plan_bytes"]

_LARGEST_BYTES = 512 * 2**20
_NO_PICKLE = (
    "a pickle (also torch.save's) runs code when it is loaded, so foreshard reads none: save the plan as JSON, "
    "json.dump(plan._serialize(), open('plan.json', 'w')), or give the planner's log"
)


def import_plan(path: str | Path, tables: Sequence[Table] = ()) -> PlanFile:
    """Return the plan of a file: foreshard's own, TorchRec's JSON or bundle, or its printed report, also gzipped.

    `tables` say what TorchRec's plan JSON leaves out (data_parallel tables' sizes, pooling, data types). Raises
    InputError with every mistake found; pickles are refused.
    """
    return import_plan_text(read_plan_bytes(path), tables, where=str(path))


def read_plan_bytes(path: str | Path) -> str:
    """Return the text of a plan file, unpacked if it is gzipped; raises InputError for pickles and what is no text."""
    try:
        data = Path(path).read_bytes()
        if data[:2] == b"\x1f\x8b":
            with gzip.open(path) as packed:
                data = packed.read(_LARGEST_BYTES + 1)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read: {reason}", where=str(path)) from None
    if len(data) > _LARGEST_BYTES:
        raise InputError(f"holds more than {_LARGEST_BYTES} bytes: no plan is that large", where=str(path))
    if data[:1] == b"\x80" or data[:4] == b"PK\x03\x04":
        raise InputError(_NO_PICKLE, where=str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is no UTF-8 text (byte {data[error.start]:#04x} at {error.start})", where=str(path)
        ) from None


def import_plan_text(text: str, tables: Sequence[Table] = (), *, where: str = "plan") -> PlanFile:
    """Return the plan that a text holds, see `import_plan`; raises InputError."""
    problems: list[str] = []
    begin = text.lstrip()[:1]
    if begin != "{" and is_report(text):  # a log's lines may begin with "[rank0]:"
        plan = plan_of_report(read_report(text), problems)
    elif begin in ("{", "["):
        plan = _from_json(load_json(text, where=where), tables, problems, where)
    else:
        raise InputError(
            "is neither JSON nor a planner's report: give ShardingPlan._serialize() as JSON, the bundle of options, "
            "topology and architecture, or the log with '--- Planner Statistics ---'",
            where=where,
        )
    if problems or plan is None:
        raise InputError(problems, where=where)
    return plan


def _from_json(document: Any, tables: Sequence[Table], problems: list[str], where: str) -> PlanFile | None:
    if isinstance(document, Mapping) and document.get("format") == "foreshard-plan":
        return parse_plan_file(document, where=where)
    if isinstance(document, Mapping) and "options" in document:
        return plan_of_bundle(document, tables, problems)
    if isinstance(document, Mapping) and isinstance(document.get("plan"), Mapping):
        notes: list[str] = []
        return plan_of_rows(
            read_serialized(document["plan"], problems), tables, problems, notes, source="torchrec plan"
        )
    raise InputError('expected "plan" (ShardingPlan._serialize()) or "options" (the bundle) at the top', where=where)
