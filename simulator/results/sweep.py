"""Grids of what-ifs: one predicted row for every combination of varied keys, compared with the first."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any

from tabulate import tabulate
from tqdm import tqdm

from foreshard.simulator.files.document import parse_override
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.scenario import Scenario
from foreshard.simulator.results.report import report
from foreshard.simulator.results.sweep_store import RowStore, inputs_sha256
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import ContradictionError, ForeshardError, InputError, MissingDependencyError
from foreshard.topologies.units import format_bytes

if TYPE_CHECKING:
    import pandas

__all__ = ["Comparison", "Row", "combinations", "compare", "parse_vary"]

Row = dict[str, Any]
Source = str | Path | Mapping[str, Any] | Scenario
Measures = dict[str, float | bool | int]

_MEASURES = ("step_time_s", "samples_per_s", "speedup", "scaling_efficiency", "all_to_all_s", "memory_fits")
_PAIRED = "([{", ")]}"
_PROBLEM_WIDTH = 100
_WIDTH = 120
_IDEAL = "of ideal"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Rows in the order of the grid, the last key varying fastest; a combination that cannot be has a `problem`."""

    keys: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def finished(self) -> tuple[Row, ...]:
        """The rows that were predicted."""
        return tuple(row for row in self.rows if "problem" not in row)

    def to_text(self) -> str:
        """One aligned table: times in ms, speed-up and, where ranks vary, percent of ideal against the first row."""
        names = [key.rsplit(".", 1)[-1] for key in self.keys]
        if len(set(names)) < len(names):
            names = list(self.keys)
        headers = [*names, "step ms", "samples/s", "speed-up", _IDEAL, "all-to-all ms", "memory"]
        body = [[*(str(row[key]) for key in self.keys), *_cells(row)] for row in self.rows]
        if len({row["ranks"] for row in self.finished}) == 1:
            ideal = headers.index(_IDEAL)
            headers, *body = ([*line[:ideal], *line[ideal + 1 :]] for line in (headers, *body))
        align = ["right"] * (len(headers) - 1) + ["left"]
        table = tabulate(body, headers, tablefmt="simple", colalign=align, disable_numparse=True)
        return "\n".join([table, *self._reasons()]) + "\n"

    def _reasons(self) -> Iterator[str]:
        """In full why rows cannot be, each reason once."""
        for problem in dict.fromkeys(row["problem"] for row in self.rows if "problem" in row):
            if len(f"cannot be: {problem}") > _PROBLEM_WIDTH:
                yield fill(f"cannot be: {problem}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)

    def to_csv(self) -> str:
        """The rows as CSV: varied keys, measures in seconds and bytes, and the problem of a row that cannot be."""
        out = io.StringIO()
        columns = dict.fromkeys(name for row in self.rows for name in row)
        writer = csv.DictWriter(out, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()

    def to_frame(self) -> pandas.DataFrame:
        """The rows as a pandas DataFrame. Raises MissingDependencyError without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise MissingDependencyError(
                "to_frame() needs pandas, which is not installed: pip install 'foreshard[frames]'"
            ) from error
        return pandas.DataFrame(list(self.rows))

    def _repr_html_(self) -> str:
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        body = [[row.get(name, "") for name in columns] for row in self.rows]
        return str(tabulate(body, columns, tablefmt="html"))


def compare(
    source: Source,
    vary: Mapping[str, Sequence[object]] | Iterable[str],
    overrides: Iterable[str] = (),
    *,
    jobs: int = 1,
    keep: Path | None = None,
) -> Comparison:
    """Return the predicted step of every combination of `vary`, {"cluster.nodes": [1, 2]} or ("cluster.nodes=1,2",).

    `jobs` > 1 predicts in that many processes through joblib where it is installed. `keep` names a file of finished
    rows: those whose inputs are unchanged are taken from it, new ones appended. A combination that cannot be, as a
    sharding group that does not divide its world, becomes a row with its problem. Raises InputError if the scenario or
    a value is bad by itself, or if no combination can be predicted.
    """
    varied = _varied(vary)
    common = tuple(overrides)
    read_scenario(source, common)
    grid = list(combinations(varied))
    store = RowStore(keep)
    found = dict(_predicted(source, common, grid, store, jobs))
    measures = [found[index] for index in range(len(grid))]
    if all(isinstance(item, str) for item in measures):
        raise InputError(dict.fromkeys(str(item) for item in measures), where="no combination can be predicted")
    return Comparison(keys=tuple(varied), rows=tuple(_scaled(grid, measures)))


def parse_vary(text: str) -> tuple[str, list[str]]:
    """Return the key and the values of "key=a,b,c"; commas inside quotes, brackets or braces do not separate.

    Raises InputError if there is no key or no value.
    """
    key, equals, values = text.partition("=")
    parts = [part.strip() for part in _split(values)]
    if not equals or not key.strip() or not all(parts):
        raise InputError(f"--vary {text!r} is not key=value,value: write for example cluster.nodes=1,2,4")
    return key.strip(), parts


def combinations(vary: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """Yield every combination as {key: value}, the last key varying fastest."""
    for values in product(*vary.values()):
        yield dict(zip(vary, values, strict=True))


def _split(text: str) -> Iterator[str]:
    depth, quote, part = 0, "", ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        else:
            depth += (char in _PAIRED[0]) - (char in _PAIRED[1])
            if char == "," and depth == 0:
                yield part
                part = ""
                continue
        part += char
    yield part


def _varied(vary: Mapping[str, Sequence[object]] | Iterable[str]) -> dict[str, list[str]]:
    if isinstance(vary, Mapping):
        varied = {key: [_written(value) for value in values] for key, values in vary.items()}
    else:
        pairs = [parse_vary(text) for text in ([vary] if isinstance(vary, str) else vary)]
        varied = dict(pairs)
        if len(varied) < len(pairs):
            raise InputError("a key is varied twice: give all its values in one list")
    empty = [f"{key} has no values to vary" for key, values in varied.items() if not values]
    if empty or not varied:
        raise InputError(empty or "nothing to vary: give at least one key with its values")
    return varied


def _written(value: object) -> str:
    """A Python value as an override writes it."""
    if value is None:
        return "world"
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- predicting ----------------------------------------------------------------------------------------------------


def _predicted(
    source: Source, common: tuple[str, ...], grid: list[dict[str, str]], store: RowStore, jobs: int
) -> Iterator[tuple[int, Measures | str]]:
    """Measures of every combination by its index, or why it cannot be; finished ones are stored as they come."""
    waiting: list[tuple[int, Scenario, str]] = []
    for index, scenario in enumerate(_scenarios(source, common, grid)):
        if isinstance(scenario, str):
            yield index, scenario
            continue
        digest = inputs_sha256(scenario)
        known = store.get(digest)
        if known is None:
            waiting.append((index, scenario, digest))
        else:
            yield index, known
    results = _run(_measures, [scenario for _, scenario, _ in waiting], jobs)
    for at, measures in tqdm(results, total=len(waiting), unit="step", disable=None, leave=False):
        index, _, digest = waiting[at]
        if not isinstance(measures, str):
            store.put(digest, measures)
        yield index, measures


def _scenarios(source: Source, common: tuple[str, ...], grid: list[dict[str, str]]) -> list[Scenario | str]:
    """The scenario of every combination, or why it cannot be; raises InputError with all values bad by themselves."""
    found: list[Scenario | str] = []
    bad: dict[str, None] = {}
    conflicts: set[str] = set()
    for chosen in grid:
        try:
            found.append(read_scenario(source, (*common, *(f"{key}={value}" for key, value in chosen.items()))))
        except ContradictionError as error:
            found.append("; ".join(error.problems))
            conflicts.update(error.problems)
        except InputError as error:
            bad.update(dict.fromkeys(error.problems))
    if bad:
        raise InputError([problem for problem in bad if problem not in conflicts], where="--vary")
    return found


def _run(
    work: Callable[[Scenario], Measures | str], scenarios: list[Scenario], jobs: int
) -> Iterator[tuple[int, Measures | str]]:
    """Work on every scenario, here or in processes; yields (index, result) in order.

    Where a process dies (killed for memory, say) the rest is worked on here.
    """
    done = 0
    if jobs > 1 and len(scenarios) > 1 and find_spec("joblib"):
        with suppress(BrokenExecutor):
            for result in _in_processes(work, scenarios, min(jobs, len(scenarios))):
                yield done, result
                done += 1
    for index in range(done, len(scenarios)):
        yield index, work(scenarios[index])


def _in_processes(
    work: Callable[[Scenario], Measures | str], scenarios: list[Scenario], jobs: int
) -> Iterable[Measures | str]:
    from joblib import Parallel, delayed

    results: Iterable[Measures | str] = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(work)(scenario) for scenario in scenarios
    )
    return results


def _measures(scenario: Scenario) -> Measures | str:
    """What a row tells of one predicted step, or why it cannot be predicted."""
    try:
        prediction = Prediction(scenario)
        told = report(prediction, what_if=False)
    except ForeshardError as error:
        return "; ".join(error.problems) if isinstance(error, InputError) else str(error)
    assert told.memory is not None
    assert told.samples_per_s is not None
    return {
        "ranks": prediction.cluster.size,
        "step_time_s": told.step_time_s,
        "samples_per_s": told.samples_per_s,
        "all_to_all_s": told.all_to_all_s,
        "memory_fits": told.memory.fits,
        "memory_peak_bytes": float(told.memory.per_rank_bytes[told.memory.peak_rank]),
    }


# -- rows ----------------------------------------------------------------------------------------------------------


def _scaled(grid: list[dict[str, str]], measures: list[Measures | str]) -> Iterator[Row]:
    """Rows with speed-up and scaling efficiency against the first that could be predicted.

    Efficiency = throughput / (first throughput x ranks / first ranks).
    """
    first = next(item for item in measures if not isinstance(item, str))
    for chosen, item in zip(grid, measures, strict=True):
        row: Row = {key: parse_override(f"{key}={value}")[1] for key, value in chosen.items()}
        if isinstance(item, str):
            yield {**row, **dict.fromkeys(_MEASURES), "problem": item}
            continue
        speedup = item["samples_per_s"] / first["samples_per_s"]
        scaled = {**item, "speedup": speedup, "scaling_efficiency": speedup * first["ranks"] / item["ranks"]}
        rest = {name: value for name, value in item.items() if name not in _MEASURES}
        yield {**row, **{name: scaled[name] for name in _MEASURES}, **rest}


def _cells(row: Row) -> list[str]:
    if "problem" in row:
        return ["-"] * 5 + [shorten(f"cannot be: {row['problem']}", _PROBLEM_WIDTH, placeholder=" ... (below)")]
    fits = "fits" if row["memory_fits"] else "DOES NOT FIT"
    return [
        f"{row['step_time_s'] * 1e3:.3f}",
        f"{row['samples_per_s']:,.0f}",
        f"{row['speedup']:.2f}x",
        f"{row['scaling_efficiency']:.1%}",
        f"{row['all_to_all_s'] * 1e3:.3f}",
        f"{format_bytes(row['memory_peak_bytes'])}, {fits}",
    ]
