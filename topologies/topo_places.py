"""Where the devices of a `topo -m` matrix sit: which share a PCIe switch, which a socket, which NICs carry traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from foreshard.topologies.topo_lines import is_gpu
from foreshard.topologies.topo_matrix import TopoMatrix

__all__ = ["Places", "completed", "place_devices"]

_BELOW_HOST_BRIDGE = {"PIX", "PXB"}
_SAME_SOCKET = {"PIX", "PXB", "PHB", "NODE"}
_FAR = ("PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Socket of each device and PCIe switch of those that share one, by name; NICs in use in order of their columns."""

    socket: dict[str, int]
    switch: dict[str, int]
    nics: tuple[str, ...]
    messages: tuple[str, ...]


def completed(matrix: TopoMatrix) -> TopoMatrix:
    """Return the matrix with the GPU pairs that no row states: as all others, or over the nearest common GPU."""
    lost = [(a, b) for a, b in combinations(matrix.gpus, 2) if matrix.code(a, b) is None]
    guesses = {frozenset(pair): _guess(matrix, *pair) for pair in lost}
    messages = list(matrix.messages)
    for code in sorted(set(guesses.values())):
        pairs = ", ".join(f"{a}-{b}" for a, b in lost if guesses[frozenset((a, b))] == code)
        messages.append(f"not stated, {code} is assumed as to their neighbours: {pairs}")
    return replace(matrix, codes={**matrix.codes, **guesses}, messages=tuple(messages))


def _guess(matrix: TopoMatrix, a: str, b: str) -> str:
    known = {c for pair, c in matrix.codes.items() if len(pair) == 2 and all(map(is_gpu, pair))}
    if len(known) == 1:
        return next(iter(known))
    over = ((matrix.code(a, k), matrix.code(k, b)) for k in matrix.gpus)
    worst = [max(_FAR.index(x), _FAR.index(y)) for x, y in over if x in _FAR and y in _FAR]
    return _FAR[min(worst, default=len(_FAR) - 1)]


def place_devices(matrix: TopoMatrix) -> Places:
    """Return where the devices of a completed matrix sit."""
    messages: list[str] = []
    matrix = _with_likely_nics(matrix, messages)
    nics = _nics_in_use(matrix, messages)
    devices = (*matrix.gpus, *nics)
    switches = _components(devices, lambda a, b: matrix.code(a, b) in _BELOW_HOST_BRIDGE)
    switch = {d: i for i, group in enumerate(g for g in switches if len(g) > 1) for d in group}
    if any(matrix.code(a, b) == "PXB" for a in devices for b in devices if a != b):
        messages.append("devices at PXB distance are taken to hang on one PCIe switch; a tree of switches is not told")
    socket = _sockets(matrix, devices, messages)
    _note_merged(matrix, devices, socket, switch, messages)
    return Places(socket=socket, switch=switch, nics=nics, messages=tuple(messages))


def _components(devices: Iterable[str], joined: Callable[[str, str], bool]) -> list[list[str]]:
    """Groups of devices that are joined directly or over others, each in the given order."""
    groups: list[list[str]] = []
    for device in devices:
        touched = [group for group in groups if any(joined(device, other) for other in group)]
        merged = [d for group in touched for d in group] + [device]
        groups = [group for group in groups if group not in touched] + [merged]
    return groups


def _near(matrix: TopoMatrix, gpu: str) -> list[str]:
    return [nic for nic in matrix.nics if matrix.code(gpu, nic) in _BELOW_HOST_BRIDGE]


def _with_likely_nics(matrix: TopoMatrix, messages: list[str]) -> TopoMatrix:
    """The matrix with a NIC beside each GPU whose row is missing, if the other rows follow one regular pattern."""
    lost = [g for g in matrix.gpus if not _near(matrix, g) and _unknown_to(matrix, g)]
    known = [(int(g[3:]), matrix.nics.index(_near(matrix, g)[0])) for g in matrix.gpus if len(_near(matrix, g)) == 1]
    steps = {(b[1] - a[1], b[0] - a[0]) for a, b in pairwise(known)}
    if not lost or len(known) + len(lost) < len(matrix.gpus) or steps != {(1, 1)}:
        return matrix
    codes = dict(matrix.codes)
    shift = known[0][1] - known[0][0]
    for gpu in lost:
        column = int(gpu[3:]) + shift
        if 0 <= column < len(matrix.nics):
            codes[frozenset((gpu, matrix.nics[column]))] = "PIX"
            messages.append(f"{matrix.nics[column]} is assumed beside {gpu}, whose row is missing, as with the others")
    return replace(matrix, codes=codes)


def _nics_in_use(matrix: TopoMatrix, messages: list[str]) -> tuple[str, ...]:
    """NICs that carry GPU traffic: not those far from every GPU, nor extra ones where every GPU has its own."""
    beside = {nic for gpu in matrix.gpus for nic in _near(matrix, gpu)}
    local = {n for n in matrix.nics if any(matrix.code(g, n) in _SAME_SOCKET for g in matrix.gpus)}
    served = all(_near(matrix, gpu) for gpu in matrix.gpus)
    used = [n for n in matrix.nics if n in (beside if served else local)] or list(matrix.nics)
    left = [n for n in matrix.nics if n not in used]
    hidden = [n for n in left if n not in local and any(matrix.code(g, n) is None for g in matrix.gpus)]
    far = [n for n in left if n not in local and n not in hidden]
    spare = [n for n in left if n in local]
    for names, why in (
        (hidden, "SYS to every GPU whose row is whole; where they sit is not known, left out"),
        (far, "SYS to every GPU, taken as storage NICs and left out"),
        (spare, "beside no GPU while every GPU has a NIC of its own, left out"),
    ):
        if names:
            messages.append(f"{', '.join(names)}: {why}")
    several = [gpu for gpu in matrix.gpus if len(_near(matrix, gpu)) > 1]
    if several:
        messages.append(
            f"{', '.join(several)} have several NICs beside them; functions of one card would share its rate"
        )
    return tuple(used)


def _unknown_to(matrix: TopoMatrix, gpu: str) -> bool:
    return any(matrix.code(gpu, nic) is None for nic in matrix.nics)


def _sockets(matrix: TopoMatrix, devices: tuple[str, ...], messages: list[str]) -> dict[str, int]:
    """Socket of each device: groups that the codes and CPU lists join; groups without a hint are filled up in order."""
    groups = _components(devices, lambda a, b: matrix.code(a, b) in _SAME_SOCKET or _same_cpus(matrix, a, b))
    groups.sort(key=lambda group: min(devices.index(d) for d in group))
    told = [group for group in groups if _tells_place(matrix, group)]
    usual = max((_gpus_in(group) for group in told), default=len(matrix.gpus)) or 1
    lost = [group for group in groups if group not in told]
    for group in lost:
        if not told or _gpus_in(told[-1]) + _gpus_in(group) > usual:
            told.append([])
        told[-1].extend(group)
    if lost:
        names = ", ".join(d for group in lost for d in group)
        messages.append(f"the socket of {names} is not told; filled up in order, {usual} GPUs a socket")
    _doubt(matrix, told, messages)
    return {device: index for index, group in enumerate(told) for device in group}


def _gpus_in(group: list[str]) -> int:
    return sum(map(is_gpu, group))


def _tells_place(matrix: TopoMatrix, group: list[str]) -> bool:
    """Whether a group is known to be a socket: by a CPU list or NUMA node, or by distances where the file has none."""
    if matrix.affinity or matrix.numa:
        return any(device in matrix.affinity or device in matrix.numa for device in group)
    return any(matrix.code(device, other) in _FAR for device in group for other in matrix.devices if other != device)


def _same_cpus(matrix: TopoMatrix, a: str, b: str) -> bool:
    """Whether two devices have one CPU list, or one NUMA node where a CPU list is not told."""
    if a in matrix.affinity and b in matrix.affinity:
        return matrix.affinity[a] == matrix.affinity[b]
    return a in matrix.numa and matrix.numa[a] == matrix.numa.get(b)


def _note_merged(
    matrix: TopoMatrix, devices: tuple[str, ...], socket: dict[str, int], switch: dict[str, int], messages: list[str]
) -> None:
    """Say which pairs lie otherwise than their code, CPU lists or NUMA nodes have it, and which codes are one."""
    pairs = list(combinations(devices, 2))
    together = [(a, b) for a, b in pairs if socket[a] == socket[b]]
    on_switch = [(a, b) for a, b in together if a in switch and switch[a] == switch.get(b)]
    for names, why in (
        (_coded(matrix, together, ("SYS",)), "SYS apart, but joined to one socket by their CPU lists or other devices"),
        (
            _coded(matrix, on_switch, ("PHB", "NODE")),
            "PHB or NODE apart, but joined to one PCIe switch by other devices",
        ),
        (_differing(matrix.affinity, together), "of different CPU lists, but joined to one socket by their distances"),
        (_differing(matrix.numa, together), "of different NUMA nodes, but joined to one socket"),
    ):
        if names:
            messages.append(f"{', '.join(names)}: {why}")
    if _coded(matrix, pairs, ("PHB",)) and _coded(matrix, pairs, ("NODE",)):
        messages.append("PHB and NODE are taken alike, as paths over the CPU of one socket")


def _coded(matrix: TopoMatrix, pairs: Iterable[tuple[str, str]], codes: tuple[str, ...]) -> list[str]:
    return [f"{a}-{b}" for a, b in pairs if matrix.code(a, b) in codes]


def _differing(told: dict[str, str], pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{a}-{b}" for a, b in pairs if a in told and b in told and told[a] != told[b]]


def _doubt(matrix: TopoMatrix, groups: list[list[str]], messages: list[str]) -> None:
    """Say where the codes carry no information."""
    pairs = Counter(c for p, c in matrix.codes.items() if len(p) == 2 and all(map(is_gpu, p)))
    if len(groups) == 1 and len(matrix.gpus) >= 4:
        messages.append("all devices are on one NUMA node; in a VM or with numa=off a second socket does not show")
    if len(matrix.gpus) >= 8 and not any(code.startswith("NV") for code in pairs):
        messages.append("no NVLink is shown; if the machine has it, a VM or -mp hides it: describe it by hand")
