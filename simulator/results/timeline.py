"""The timeline of a step as Chrome/Perfetto JSON, one file per rank, in the shape in which Kineto writes it.

Shape and keys follow the files of PyTorch's profiler (pytorch/kineto, output_json.cpp): times in us with ns digits;
a GPU is a process and its streams are its threads; an operation is a `gpu_user_annotation` around its `kernel` or
`gpu_memcpy`; a collective's kernel carries NCCL's metadata. Sizes are in bytes, so `dtype` is "Byte". Links are a
process of their own: a track each, on it the collectives that crossed it. Perfetto and HolisticTraceAnalysis read
these files as they read Kineto's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from foreshard.simulator.job.program import Collective, CollectiveKind, StepProgram, Stream
from foreshard.simulator.job.trace import OpInfo, StepTrace
from foreshard.simulator.results.link_load import LinkLoads
from foreshard.topologies.cluster import Cluster

__all__ = ["Event", "RankView", "TimelineSource", "events_of", "header_of", "render", "to_json"]

Event = dict[str, object]
Members = tuple[int, ...]

_COPY = "Memcpy HtoD (Pinned -> Device)"  # Kineto's name of what the copy stream does
_LISTED = 30  # elements before Kineto abbreviates a list (pytorch, c10d/ParamCommsUtils.hpp)
# PyTorch's default stream is 7 in Kineto's files; the others are numbered as they are created.
_STREAM_ID: dict[Stream, int] = {
    "compute": 7, "copy": 20, "data_dist": 24, "comm": 28, "dense_comm": 32, "replica_comm": 36
}  # fmt: skip
_HOST_PID = 1_000_000  # + rank: the process of the host, apart from those of the GPUs
_LINK_PID = 2_000_000  # + rank
# Kernel names of NCCL 2.19 and later; "Collective name" as in pytorch's c10d/ProcessGroupNCCL.cpp.
_KERNEL: dict[CollectiveKind, str] = {
    "all_to_all": "ncclDevKernel_SendRecv",
    "all_reduce": "ncclDevKernel_AllReduce",
    "reduce_scatter": "ncclDevKernel_ReduceScatter",
    "all_gather": "ncclDevKernel_AllGather",
    "broadcast": "ncclDevKernel_Broadcast",
}
_C10D_NAME: dict[CollectiveKind, str] = {
    "all_to_all": "all_to_allv",
    "all_reduce": "allreduce",
    "reduce_scatter": "_reduce_scatter_base",
    "all_gather": "_allgather_base",
    "broadcast": "broadcast",
}


@dataclass(frozen=True, slots=True)
class _Group:
    """A process group: its name in torch.distributed ("0" is the world), what it is, its members."""

    name: str
    description: str
    members: Members


class TimelineSource:
    """What the files of all ranks are made from; the origin keeps every time stamp at or above zero."""

    def __init__(self, trace: StepTrace, program: StepProgram | None, cluster: Cluster | None, step: str = "") -> None:
        self.trace = trace
        self.step = step
        self.cluster = cluster
        self.work = {op.name: op.work for op in program.ops if isinstance(op.work, Collective)} if program else {}
        self.origin_ns = min(0, _ns(float(np.nanmin(trace.start_s, initial=0.0))))
        # What crossed which link is the model's word, of a measured step nobody has seen it.
        modelled = program is not None and cluster is not None and trace.source == "predicted"
        self.loads = LinkLoads(trace, program, cluster) if modelled and program and cluster else None

    def us(self, seconds: float) -> float:
        """A time stamp in us of the files."""
        return (_ns(seconds) - self.origin_ns) / 1000


class RankView:
    """One rank's view of the source."""

    def __init__(self, source: TimelineSource, rank: int, why: str) -> None:
        self.source = source
        self.trace = source.trace
        self.rank = rank
        self.why = why
        self.device = int(source.cluster.local_rank[rank]) if source.cluster else rank
        self.on_cpu = source.cluster is not None and source.cluster.on_cpu
        self.groups = self._groups()
        self.links = self._links()

    def _groups(self) -> dict[Members, _Group]:
        world = tuple(range(self.trace.world_size))
        found = {world: _Group("0", "default_pg", world)}
        for work in self.source.work.values():
            members = self.members(work)
            if members not in found:
                index = int(work.groups.group_of[self.rank])
                found[members] = _Group(str(len(found)), f"group {index} of {len(work.groups)}", members)
        return found

    def _links(self) -> dict[int, str]:
        """Links to show: those of the rank, and the busiest of each kind in the cluster."""
        loads = self.source.loads
        if loads is None:
            return {}
        own = dict.fromkeys(loads.of_rank(self.rank), "on this rank's way")
        return own | dict.fromkeys(loads.busiest(), "busiest of its kind")

    def members(self, work: Collective) -> Members:
        """Ranks of the rank's group in a collective."""
        group = work.groups.members[int(work.groups.group_of[self.rank])]
        return tuple(group.tolist())


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def render(view: RankView) -> bytes:
    """The whole file of one rank."""
    return to_json(header_of(view), events_of(view))


def to_json(fields: Event, events: Iterable[Event]) -> bytes:
    """A file: one field and one event a line, so that it can be searched and compared by lines."""
    head = b",\n".join(b"%b: %b" % (_json(key), _json(value)) for key, value in fields.items())
    listed = b",\n".join(_json(event) for event in events)
    return b"{\n" + head + b',\n"traceEvents": [\n' + listed + b"\n]\n}\n"


def _json(value: object) -> bytes:
    # A space after each colon, as Kineto writes it: HolisticTraceAnalysis searches for '"rank": 3' as text.
    return msgspec.json.format(msgspec.json.encode(value), indent=0)


def header_of(view: RankView) -> Event:
    """What stands before the events of a rank: the machine, the process groups, and what the file shows."""
    trace, cluster = view.trace, view.source.cluster
    header: dict[str, object] = {"schemaVersion": 1}
    if cluster is not None:
        gpu = cluster.gpu(view.rank)
        header["deviceProperties"] = [{"id": view.device, "name": gpu.name, "totalGlobalMem": int(gpu.hbm_bytes)}]
    header["distributedInfo"] = {
        "backend": cluster.backend if cluster else "nccl",
        "rank": view.rank,
        "world_size": trace.world_size,
        "pg_count": len(view.groups),
        "pg_config": [
            {"pg_name": group.name, "pg_desc": group.description, "pg_size": len(group.members)}
            for group in view.groups.values()
        ],
    }
    header["displayTimeUnit"] = "ms"
    header["foreshard"] = {
        "source": trace.source,
        "step_time_us": _ns(trace.step_time_s) / 1000,
        "step": view.source.step or "every step",
        "why_this_rank": view.why,
        "note": "a kernel stands for a whole operation; a link's rate is the mean over the transfer",
    }
    return header


def events_of(view: RankView) -> Iterator[Event]:
    """All events of a rank: names first, then the step, then operations and link transfers, each in order of time."""
    yield from _metadata(view)
    yield {
        "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": _HOST_PID + view.rank,
        "tid": _HOST_PID + view.rank, "ts": view.source.us(0.0), "dur": _ns(view.trace.step_time_s) / 1000,
        "args": {"External id": 0},
    }  # fmt: skip
    starts = view.trace.start_s[:, view.rank]
    for index in np.argsort(starts, kind="stable").tolist():
        if not np.isnan(starts[index]):
            yield from _operation(view, index)
    for order, link in enumerate(view.links):
        yield from _link_track(view, link, order)


def _metadata(view: RankView) -> Iterator[Event]:
    """Names and order of the processes and of the streams."""
    yield from _process(_HOST_PID + view.rank, f"rank {view.rank} host", "CPU", 0)
    yield from _thread(_HOST_PID + view.rank, _HOST_PID + view.rank, "step", 0)
    kind = "CPU rank" if view.on_cpu else "GPU"
    yield from _process(view.rank, f"rank {view.rank}", f"{kind} {view.device}", 1)
    used = {op.stream for op in view.trace.ops}
    for stream, number in _STREAM_ID.items():
        if stream in used:
            yield from _thread(view.rank, number, f"stream {number} {stream}", number)
    if view.links:
        yield from _process(_LINK_PID + view.rank, f"links of rank {view.rank}, and the busiest", "links", 2)


def _process(pid: int, name: str, label: str, order: int) -> Iterator[Event]:
    yield _named("process_name", pid, 0, {"name": name})
    yield _named("process_labels", pid, 0, {"labels": label})
    yield _named("process_sort_index", pid, 0, {"sort_index": order})


def _thread(pid: int, tid: int, name: str, order: int) -> Iterator[Event]:
    yield _named("thread_name", pid, tid, {"name": name})
    yield _named("thread_sort_index", pid, tid, {"sort_index": order})


def _named(event: str, pid: int, tid: int, args: Event) -> Event:
    return {"name": event, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args}


def _operation(view: RankView, index: int) -> Iterator[Event]:
    """The annotation of an operation, inside it the kernel, inside that the waiting for other ranks."""
    trace, op = view.trace, view.trace.ops[index]
    begin, end = _ns(float(trace.start_s[index, view.rank])), _ns(float(trace.end_s[index, view.rank]))
    wait = min(_ns(float(trace.wait_s[index, view.rank])), end - begin)
    place: Event = {"pid": view.rank, "tid": _STREAM_ID[op.stream]}
    place |= {"ts": (begin - view.source.origin_ns) / 1000, "dur": (end - begin) / 1000}
    about: Event = {"External id": index + 1, "stage": op.stage, "batch": op.batch}
    kernel: Event = {"External id": index + 1, "device": view.device, "stream": _STREAM_ID[op.stream]}
    kernel["correlation"] = index + 1
    if op.collective is not None:
        kernel |= _collective(view, op) | {"wait us": wait / 1000}
    cat = "gpu_memcpy" if op.stream == "copy" and op.collective is None else "kernel"
    yield {"ph": "X", "cat": "gpu_user_annotation", "name": op.name, **place, "args": about}
    yield {"ph": "X", "cat": cat, "name": _kernel_name(op, view), **place, "args": kernel}
    if wait > 0:
        name = "wait for the last rank"
        yield {"ph": "X", "cat": "gpu_user_annotation", "name": name, **place, "dur": wait / 1000, "args": about}


def _kernel_name(op: OpInfo, view: RankView) -> str:
    if op.collective is not None:
        return f"gloo:{op.collective.kind}" if view.on_cpu else _KERNEL[op.collective.kind]  # as torch records gloo
    return _COPY if op.stream == "copy" and not view.on_cpu else op.label


def _collective(view: RankView, op: OpInfo) -> Event:
    """NCCL's metadata of a collective on the rank, in Kineto's keys, then what only a prediction knows."""
    info, work = op.collective, view.source.work.get(op.name)
    assert info is not None
    args: Event = {"Collective name": _C10D_NAME[info.kind], "dtype": "Byte", "Group size": info.group_size}
    if work is None:
        args |= {"In msg nelems": round(info.max_bytes_out), "Out msg nelems": round(info.max_bytes_in)}
        args["sizes of"] = "busiest rank"
    else:
        group = view.groups[view.members(work)]
        args |= {"Group size": len(group.members)} | _sizes(work, view.rank)
        args |= {"Process Group Name": group.name, "Process Group Description": group.description}
        args["Process Group Ranks"] = _listed(group.members)
    args |= {"algorithm": info.algorithm, "bottleneck": info.bottleneck}
    return args | {"slowest group us": _ns(info.time_s) / 1000, "bound us": _ns(info.bound_s) / 1000}


def _sizes(work: Collective, rank: int) -> Event:
    """Bytes of the rank's input and output, with what stays on the rank, as torch.distributed counts them."""
    index = int(work.groups.group_of[rank])
    if work.kind == "all_to_all":
        position = int(work.groups.position_of[rank])
        sent = np.rint(work.traffic_of(index).row(position)).astype(np.int64)
        received = np.rint(work.traffic_of(index).transposed().row(position)).astype(np.int64)
    else:
        whole, size = work.nbytes_of(index), int(work.groups.sizes[index])
        sent = np.array([round(whole / size if work.kind == "all_gather" else whole)])
        received = np.array([round(whole / size if work.kind == "reduce_scatter" else whole)])
    uneven = work.kind == "all_to_all"
    return {
        "In msg nelems": int(sent.sum()),
        "Out msg nelems": int(received.sum()),
        "In split size": _listed(sent.tolist() if uneven else ()),
        "Out split size": _listed(received.tolist() if uneven else ()),
    }


def _listed(values: Sequence[int]) -> str:
    shown = ", ".join(str(value) for value in values[:_LISTED])
    return f"[{shown}, ...]" if len(values) > _LISTED else f"[{shown}]"


def _link_track(view: RankView, link: int, order: int) -> Iterator[Event]:
    """The transfers over one link; what crosses it at the same time as an earlier one gets a further track."""
    cluster, loads = view.source.cluster, view.source.loads
    assert cluster is not None
    assert loads is not None
    usable, pid = float(cluster.link_usable[link]), _LINK_PID + view.rank
    free_at: list[float] = []  # by track
    for transfer in loads.transfers(link):
        track = next((i for i, free in enumerate(free_at) if free <= transfer.start_s), len(free_at))
        tid = link * 100 + track
        if track == len(free_at):
            free_at.append(0.0)
            name = f"{cluster.link_name(link)} ({view.links[link]}, carries {usable / 1e9:.1f} GB/s)"
            name += f", track {track + 1}" * bool(track)
            yield from _thread(pid, tid, name, order * 100 + track)
        free_at[track] = transfer.end_s
        start = _ns(transfer.start_s)
        duration = _ns(transfer.end_s) - start
        rate = transfer.nbytes / duration if duration else 0.0  # bytes/ns are GB/s
        args: Event = {"bytes": round(transfer.nbytes), "group": transfer.group, "GB/s": round(rate, 3)}
        yield {
            "ph": "X", "cat": "link", "name": view.trace.ops[transfer.op].name, "pid": pid, "tid": tid,
            "ts": (start - view.source.origin_ns) / 1000, "dur": duration / 1000,
            "args": args | {"share of what it carries, %": round(100 * rate * 1e9 / usable, 2)},
        }  # fmt: skip
