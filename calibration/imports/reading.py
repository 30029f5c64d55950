"""All files of an import read, and every mistake in any of them told at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from foreshard.calibration.imports.imported_profile import Imported
from foreshard.calibration.imports.kineto import RawTrace, read_trace
from foreshard.calibration.imports.log_rows import ClusterOf, ImportedLog, Kinds, imported_log
from foreshard.calibration.imports.places import Told
from foreshard.calibration.imports.source import SourceFile, named, sources
from foreshard.calibration.imports.trace_products import TracedWork, traced_work
from foreshard.calibration.imports.trace_rows import trace_rows
from foreshard.topologies.errors import InputError

__all__ = ["read_files"]


def read_files(
    paths: Sequence[Path], kinds: Kinds, told: Told, cluster_of: ClusterOf | None = None, *, with_work: bool = True
) -> Imported:
    """Return what the files hold; with `cluster_of`, the machine with so many nodes, logs are compared with its wires.

    Without `with_work`, the work of traces is left out.
    Raises InputError with every mistake of every file, each behind the file's name.
    """
    files = sources(paths)
    problems = _unknown(files, kinds)
    logs = _logs([file for file in files if file.kind == "log"], kinds, told, cluster_of, problems)
    traces = _traces([file for file in files if file.kind == "trace"], problems)
    if problems:
        raise InputError(problems)
    if not traces:
        return Imported(logs=tuple(logs))
    work = traced_work(traces) if with_work else TracedWork()
    return Imported(logs=tuple(logs), traces=tuple(traces), traced=trace_rows(traces, told), work=work)


def _unknown(files: Sequence[SourceFile], kinds: Kinds) -> list[str]:
    """One sentence for every file that --kind names and that is no log of this import."""
    known = {name for file in files if file.kind == "log" for name in (str(file.path), file.path.name)}
    return [f"--kind {name}={kind}: no such log is given" for name, kind in kinds.by_file.items() if name not in known]


def _logs(
    files: Sequence[SourceFile], kinds: Kinds, told: Told, cluster_of: ClusterOf | None, problems: list[str]
) -> list[ImportedLog]:
    logs = []
    for file in files:
        try:
            logs.append(imported_log(file, kinds, told, cluster_of))
        except InputError as error:
            problems += named(file.name, error)
    return logs


def _traces(files: Sequence[SourceFile], problems: list[str]) -> list[RawTrace]:
    traces = []
    total = sum(file.path.stat().st_size for file in files)
    with tqdm(total=total, unit="B", unit_scale=True, desc="traces", disable=None, delay=2, file=sys.stderr) as bar:
        for file in files:
            try:
                traces.append(read_trace(file, bar.update))
            except InputError as error:
                problems += named(file.name, error)
    return traces
