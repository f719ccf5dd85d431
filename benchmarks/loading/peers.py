"""The peers' side of the loading benchmark, in a separate process: python benchmarks/loading/peers.py WAY FILE.

Each peer computes gpulab's figures by the shortest way its interface offers; its output to screen or browser is
suppressed. Each prints its results as one line of JSON, so that a peer that did nothing is noticed. Without
arguments: the peers that this interpreter has.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Results = dict[str, float | int | None]

PACKAGES = {  # what each way needs
    "hta": ("HolisticTraceAnalysis", "hta.trace_analysis"),
    "torch_tb": ("torch_tb_profiler", "torch_tb_profiler.profiler.data"),
    "pandas": ("pandas", "pandas"),
    "floor": ("pysimdjson", "simdjson"),
}
BLOCK = 2**20  # of 0.5 to 16 MB the fastest, as it stays in the second-level cache


def main() -> None:
    """Run one variant and print its results, or print the available peers."""
    if len(sys.argv) == 1:
        print(json.dumps({way: installed(package) for way, (package, _) in PACKAGES.items()}))
        return
    way, path = sys.argv[1:]
    results = {"hta": hta, "torch_tb": torch_tb, "pandas": by_hand, "floor": floor}[way](path)
    print(json.dumps(results))


def installed(package: str) -> str | None:
    """Return the version of a package; None if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def imported(name: str) -> Any:
    """A module by name; types are not looked for, since peers need not be installed where this is checked."""
    return importlib.import_module(name)


def hta(path: str) -> Results:
    """HolisticTraceAnalysis with its default reader: temporal, idle and kernel breakdown, launch statistics.

    The rank is named, which spares it a search through the file.
    """
    analysis = imported("hta.trace_analysis").TraceAnalysis(trace_files={0: path})
    parts = analysis.get_temporal_breakdown(visualize=False)
    idle, _ = analysis.get_idle_time_breakdown(visualize=False)
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
    launches = analysis.get_cuda_kernel_launch_stats(visualize=False)[0]
    assert all(len(frame) for frame in (parts, idle, kinds, kernels, launches)), "a table is empty"
    trace = analysis.t.get_trace(0)
    codes = analysis.t.symbol_table.get_sym_id_map()
    return {
        "events": len(trace),
        "kernels": int(trace["cat"].isin([codes.get("kernel"), codes.get("Kernel")]).sum()),
        "idle_frac": float(parts["idle_time_pctg"].iloc[0]) / 100,
    }


def torch_tb(path: str) -> Results:
    """The TensorBoard plugin: parse, process, analyse and generate, as its loader does in a process of its own."""
    loader = imported("torch_tb_profiler.profiler.data")
    generator = imported("torch_tb_profiler.profiler.run_generator")
    with tempfile.TemporaryDirectory() as folder:
        data = loader.RunProfileData.parse("worker", None, path, folder)
    profile = generator.RunGenerator("worker", None, data).generate_run_profile()
    loader.DistributedRunProfileData(data)
    assert profile.overview["steps"]["rows"], "no steps"
    assert profile.kernel_table["data"]["rows"], "no kernels"
    assert profile.operation_table_by_name, "no operators"
    metrics = data.gpu_metrics_parser
    return {
        "events": len(data.events),
        "kernels": int(data.kernel_stat["count"].sum()),
        "idle_frac": 1 - float(metrics.gpu_utilization[min(metrics.gpu_ids)]),
    }


def by_hand(path: str) -> Results:
    """What a careful engineer writes without a tool: json, one DataFrame, vectorised figures."""
    import gzip

    pd = imported("pandas")
    with (gzip.open if path.endswith(".gz") else open)(path) as file:
        document = json.load(file)
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    args = [event.get("args") or {} for event in events]
    df = pd.DataFrame({key: [event.get(key) for event in events] for key in ("cat", "name", "ts", "dur")})
    for key in ("correlation", "device", "bytes"):
        df[key] = [arg.get(key, -1) for arg in args]
    df["cat"], df["name"] = df["cat"].astype("category"), df["name"].astype("category")
    df["end"] = df["ts"] + df["dur"]
    return _figures_by_hand(df)


def _figures_by_hand(df: Any) -> Results:
    np = imported("numpy")
    work = df[df["cat"].isin(["kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"])].sort_values("ts")
    is_kernel = work["cat"].isin(["kernel", "Kernel"])
    kernels, copies = work[is_kernel], work[~is_kernel]

    def merged(part: Any) -> tuple[Any, Any]:
        part = part[part["dur"] > 0]
        start, reach = part["ts"].to_numpy(), np.maximum.accumulate(part["end"].to_numpy())
        opens = np.append(True, start[1:] > reach[:-1])
        return start[opens], reach[np.append(np.flatnonzero(opens)[1:] - 1, len(start) - 1)]

    busy = {device: merged(part) for device, part in work.groupby("device")}
    gaps = {device: start[1:] - end[:-1] for device, (start, end) in busy.items()}
    start, end = merged(work)
    done = np.append(0.0, np.cumsum(end - start))

    def busy_before(at: Any) -> Any:
        index = np.searchsorted(start, at, side="right")
        return done[index] - np.where(index > 0, np.maximum(end[np.maximum(index - 1, 0)] - at, 0), 0)

    steps = df[df["name"].str.startswith("ProfilerStep#") & (df["cat"] != "gpu_user_annotation")]
    busy_in_steps = busy_before(steps["end"].to_numpy()) - busy_before(steps["ts"].to_numpy())
    table = kernels.groupby("name", observed=True)["dur"].agg(["count", "sum", "mean"]).sort_values("sum")
    copied = copies.groupby("name", observed=True).agg({"dur": ["count", "sum"], "bytes": "sum"})
    calls = df[df["cat"].isin(["cuda_runtime", "cuda_driver", "Runtime"]) & (df["correlation"] >= 0)]
    linked = work.merge(calls, on="correlation", suffixes=("", "_call"))
    assert len(table), "no kernels"
    return {
        "events": len(df),
        "kernels": len(kernels),
        "idle_frac": float(1 - (end - start).sum() / (end[-1] - start[0])),
        "steps": len(busy_in_steps),
        "gaps": sum(map(len, gaps.values())),
        "copies": int(copied["dur", "count"].sum()),
        "delay_us": float((linked["ts"] - linked["ts_call"]).median()),
    }


def floor(path: str) -> Results:
    """Lower limit of reading: inflate, and find every token of the JSON, without building Python objects."""
    parser = imported("simdjson").Parser()
    opened: Any = open
    if path.endswith(".gz"):
        opened = imported("gzip").open
        with contextlib.suppress(ImportError):
            opened = imported("isal.igzip").open
    began = time.process_time()
    buffer = bytearray(2 * BLOCK)
    view = memoryview(buffer)
    with opened(path, "rb") as file:
        buffered = file.readinto(view[:BLOCK])
        at = buffer.index(b"[", buffer.index(b'"traceEvents"'))
        buffered -= at
        view[:buffered] = view[at : at + buffered]  # from here on the buffer begins with the array's bracket
        while received := file.readinto(view[buffered : buffered + BLOCK]):
            buffered += received
            cut = _scanned(parser, buffer, view, buffered)
            view[1 : buffered - cut] = view[cut + 1 : buffered]
            buffered -= cut
    parser.parse(b'{"traceEvents":' + bytes(view[:buffered]))
    return {"load_cpu_s": time.process_time() - began}


def _scanned(parser: Any, buffer: bytearray, view: memoryview, buffered: int) -> int:
    """Scan all whole events in the buffer; where the comma after the last of them was, or 0 where there are none."""
    cut = buffered
    while (cut := buffer.rfind(b"},", 0, cut) + 1) > 0:
        buffer[cut] = ord("]")
        try:
            parser.parse(view[: cut + 1])
        except ValueError:  # this was not between two events; what stands before may be
            buffer[cut] = ord(",")
        else:
            return cut
    return 0


if __name__ == "__main__":
    main()
