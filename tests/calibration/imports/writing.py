"""Logs and traces as nccl-tests and Kineto write them, of figures that a test knows."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

DATA = Path(__file__).parents[2] / "verification" / "data"
FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda n: 1.0}
HEADER = """# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: {tool}_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1
#
# Using devices
{devices}#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def log_text(kind, ranks, rows, *, per_node=None, gpu="NVIDIA H100 80GB HBM3", wrong=0):
    """A log of `rows`, (bytes, seconds) each; with a device list if it is known how many ranks are on a host."""
    devices = "".join(
        f"#  Rank {rank:2} Group  0 Pid {1000 + rank} on node{rank // per_node:02} device {rank % per_node} "
        f"[0000:{rank % per_node:02}:00] {gpu}\n"
        for rank in range(ranks if per_node else 0)
    )
    tool = "alltoall" if kind == "all_to_all" else kind
    factor = FACTORS.get(kind, lambda n: (n - 1) / n)(ranks)
    lines = [HEADER.format(tool=tool, devices=devices)]
    for nbytes, time_s in rows:
        algbw = nbytes / time_s / 1e9
        cells = f"{time_s * 1e6:.2f} {algbw:.2f} {algbw * factor:.2f} {wrong}"
        lines.append(f"{nbytes:.0f} {nbytes / 4:.0f} float {'none' if factor < 1 else 'sum'} -1 {cells} {cells}\n")
    return "".join(lines)


def published(name):
    """Published rows of a file of tests/verification by collective, nodes and ranks: bytes and seconds."""
    rows = {}
    with (DATA / name).open() as file:
        for row in csv.DictReader(file):
            key = row["collective"], int(row["nodes"]), int(row["ranks"])
            rows.setdefault(key, []).append((float(row["bytes_per_rank"]), float(row["time_us"]) * 1e-6))
    return {key: sorted(points) for key, points in rows.items()}


def collective_event(ts, dur, *, name="allreduce", nelems=1024, dtype="Float", size=2, device=0, outputs=None, **args):
    """A kernel of NCCL as Kineto of PyTorch 2.5 describes it."""
    return {
        "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)",
        "pid": 0, "tid": 20, "ts": ts, "dur": dur,
        "args": {
            "device": device, "stream": 20, "correlation": int(ts), "Collective name": name, "In msg nelems": nelems,
            "Out msg nelems": nelems if outputs is None else outputs, "Group size": size, "dtype": dtype,
            "In split size": "[]", "Out split size": "[]", "Process Group Name": "0", **args,
        },
    }  # fmt: skip


def annotated_collective(ts, dur, *, name, dims, kind="float", device=0):
    """The annotation, the launch and the kernel of a collective as Kineto wrote them before it had arguments."""
    thread = {"pid": 7, "tid": 8}
    return [
        {"ph": "X", "cat": "user_annotation", "name": f"nccl:{name}", **thread, "ts": ts - 50, "dur": 40,
         "args": {"Input Dims": [dims], "Input type": [kind]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **thread, "ts": ts - 30, "dur": 5,
         "args": {"correlation": int(ts)}},
        {"ph": "X", "cat": "kernel", "name": "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "pid": 0, "tid": 20,
         "ts": ts, "dur": dur, "args": {"device": device, "correlation": int(ts)}},
    ]  # fmt: skip


def operator(name, start, end, tid, **args):
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": tid, "ts": start, "dur": end - start,
            "args": args}  # fmt: skip


def product(name, start, tid, took, correlation, dims=None, number=None):
    """A matrix product on a thread, its launch and its kernel of `took` microseconds."""
    args = {} if dims is None else {"Input Dims": dims, "Input type": ["float"] * len(dims)}
    args |= {} if number is None else {"Sequence number": number}
    return [
        operator(name, start, start + 10, tid, **args),
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": tid, "ts": start + 5, "dur": 2,
         "args": {"correlation": correlation}},
        {"ph": "X", "cat": "kernel", "name": "ampere_sgemm_128x64_tn", "pid": 0, "tid": 7, "ts": start + 20,
         "dur": took, "args": {"device": 0, "correlation": correlation}},
    ]  # fmt: skip


def trace_document(events, *, rank=0, world=2, gpu="NVIDIA H100 80GB HBM3", **more):
    """A whole trace of a rank."""
    about = {"backend": "nccl", "rank": rank, "world_size": world, "nccl_version": "2.27.3"}
    return {
        "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": gpu}], "distributedInfo": about,
        "traceEvents": events, **more,
    }  # fmt: skip


def write_trace(path, events, **about):
    """The trace as a file, packed if its name says so."""
    content = json.dumps(trace_document(events, **about)).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path
