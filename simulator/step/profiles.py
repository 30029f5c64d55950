"""A scenario's profile: read once, and refused where it was measured on another kind of machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from foreshard.simulator.job.scenario import ClusterChoice, Comms, Constant
from foreshard.simulator.job.suggestions import did_you_mean, shown_path
from foreshard.simulator.measured.profile import Profile
from foreshard.simulator.measured.profile_file import read_profile
from foreshard.simulator.step.constants import known_constants
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError

__all__ = ["check_profile", "check_steps", "constants_with", "load_profile"]


def load_profile(choice: ClusterChoice, cluster: Cluster) -> Profile | None:
    """Return the profile that a scenario names, None if it names none.

    Raises InputError with every mistake of the file, or if it was measured on another kind of machine.
    """
    if choice.profile is None:
        return None
    path = Path(choice.profile)
    try:
        profile = _read(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        profile = read_profile(path)  # which says what is wrong with the path
    check_profile(profile, cluster, where=shown_path(path))
    return profile


@lru_cache(maxsize=8)
def _read(path: Path, modified_ns: int) -> Profile:
    """A file is read again only once it was changed: sweeps ask for it with every scenario."""
    return read_profile(path)


def check_profile(profile: Profile, cluster: Cluster, *, where: str | None = None) -> None:
    """Return if a profile can stand for a cluster; raises InputError if it was measured on something else."""
    problems = list(_mismatches(profile, cluster))
    if problems:
        raise InputError(problems, where=where)


def check_steps(profile: Profile | None, comms: Comms) -> None:
    """Return if what a profile measured are all-to-alls as a scenario runs them; raises InputError if not."""
    measured = profile.collectives if profile is not None else ()
    if comms.all_to_all != "pairwise" and any(curve.kind == "all_to_all" for curve in measured):
        raise InputError(
            f'comms.all_to_all = "{comms.all_to_all}", but cluster.profile measured plain send/recv: use pairwise, or '
            "predict without its all_to_all"
        )


def _mismatches(profile: Profile, cluster: Cluster) -> Iterator[str]:
    if profile.backend != cluster.backend:
        yield (
            f"was measured with {profile.backend}, but {cluster.name!r} communicates with {cluster.backend}: "
            f"calibrate with {cluster.backend}"
        )
    if (profile.device == "cpu") != cluster.on_cpu:
        other = "CPUs" if cluster.on_cpu else "GPUs"
        yield f"was measured on {profile.device_name} ({profile.device}), but ranks of {cluster.name!r} are on {other}"
    elif not cluster.on_cpu and profile.work:
        yield from _other_models(profile, cluster)
    known = known_constants()
    for constant in profile.constants:
        if constant.name not in known:
            yield f"constants: there is no constant {constant.name!r}{did_you_mean(constant.name, known)}"


def _other_models(profile: Profile, cluster: Cluster) -> Iterator[str]:
    """GPU models that are not the one measured: a model is named by its first word, as H100 of H100-SXM5-80GB."""
    for gpu in cluster.gpus:
        model = re.split(r"[-\s]", gpu.name)[0]
        if not re.search(rf"\b{re.escape(model)}\b", profile.device_name, re.IGNORECASE):
            yield (
                f"its work was measured on {profile.device_name}, but {cluster.name!r} has {gpu.name}: "
                "calibrate on that GPU, or give a profile of collectives alone"
            )


def constants_with(profile: Profile | None, own: Iterable[Constant]) -> tuple[Constant, ...]:
    """Return the constants of a prediction: the profile's, and over them those that the scenario itself states."""
    measured = profile.constants if profile is not None else ()
    return tuple({constant.name: constant for constant in (*measured, *own)}.values())
