"""What feeds the model: batches that cost nothing, that worker processes build, that are cheaper or dearer to build."""

from __future__ import annotations

from dataclasses import replace

from gpulab.replay.graph.graph import Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.copies.pinning_and_prefetch import writes
from gpulab.replay.rewrites.data.batch_source import Source, source, unevenness
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.sweep import host_step_ns
from gpulab.replay.worker_queue import worth_having

WORKERS, CORES = "the workers", "the cores"  # limits, by the names that people read

HANDOVER_NS = (100_000.0, 1_500_000.0)  # taking a ready batch: seen from tiny ones to 19 MB, which took 1.4 ms
HANDOVER_LEAST_NS, HANDOVER_NS_PER_BYTE = 100_000.0, 1.3e6 / 19e6
CROWD = (0.1, 0.4)  # a worker is so much slower, times workers over cores: shared caches, memory, clocks
MAIN = (0.03, 0.12)  # and the main thread so much, whatever it does: 5-10 % was seen
CORES_EACH = (8.0, 2.0)  # cores for each worker, where nobody said how many there are
PAGEABLE = (1.3, 1.9)  # copies from ordinary memory beside busy workers: 9.9 GB/s became 5.3-6.5
# Where the cores are the limit nobody gets them without a pause: two workers and one thread on two cores took
# 1.36 times the CPU time over the cores. Threads of one operator wait for one another as well: 1.8 times.
PACKED, PACKED_THREADS = (1.1, 1.5), (1.3, 1.9)
# Of a fetch in the loop, what is no building: sampler, queue, the loader's own Python in a cold cache.
LOADER_OWN_NS = (50_000.0, 300_000.0)


def free_input(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Every batch is there at once: the time inside `DataLoader.__next__` is nothing, and no worker holds anybody up.

    A bound and no model: no number of workers, no storage and no cheaper decoding can give more than this.
    """
    return free(graph)


def free(graph: Graph) -> Graph:
    """The graph without any loading."""
    left = {name: ns for name, ns in graph.limits_ns.items() if name not in (WORKERS, CORES)}
    return replace(graph.scaled_before({"loader": 0.0}), limits_ns=left)


def workers(graph: Graph, value: Value, draw: Draw) -> Graph:
    """N worker processes build the batches while the model trains on earlier ones.

    Models: what the main thread spends in `DataLoader.__next__` becomes the taking over of a ready batch: 0.1 ms and
    0.07 ms a MB, or 0.1-1.5 ms where its size is not known. A step cannot be shorter than one batch over N workers;
    what a batch takes is measured: in the main process without workers, or by the pace of workers that are late. A
    queue of `prefetch_factor` batches for each worker, given out in turn, is simulated with the measured spread, as
    one slow batch holds up those behind it. Nor can it be shorter than the CPU time of a batch and of the rest of the
    step over the cores that other programs leave, times 1.1-1.5 (1.3-1.9 if the model computes on several threads), as
    two workers and one thread on two cores showed. A worker is slower than the main process was by 0.1-0.4 x N /
    cores, the main thread by 3-12 %, and copies from pageable memory take 1.3-1.9 times as long (measured on a V100
    with four workers); of all of these only the share counts in which building computes and does not wait.

    Cannot know: whether storage answers N at once as it does one, and what starting workers costs each epoch.
    """
    told = source(graph)
    if told is None:
        return graph
    count = _count(graph, told, value)
    if told.feeding.workers == count and not _rebuilt(graph):
        return graph
    cost_ns = _batch_ns(graph, told, count, draw)
    limits = dict(graph.limits_ns)
    if cost_ns is not None:
        limits[WORKERS] = cost_ns * unevenness(graph, count)
        demand_ns = _demand_ns(graph, told)
        if demand_ns is not None:
            limits[CORES] = _packed_ns(graph, told, demand_ns, count, draw)
    taken = graph.scaled_before({"loader": _handover(graph, told, draw)})
    if not told.feeding.workers:  # with some of them the recording was as crowded
        taken = _crowded(taken, told.busy_frac, draw)
    return replace(taken, limits_ns=limits)


def item_cost(graph: Graph, value: Value, draw: Draw) -> Graph:
    """To build a batch takes F times as long: 0.5 for half the time, 2 for twice.

    Models: priced by what this run measured: without workers the time in `DataLoader.__next__`, with workers that are
    late the pace they set. Time both ways of building alone (`%timeit next(iter(loader))`), and their ratio is F. Of a
    fetch 0.05 to 0.3 ms are the loader's own and stay.

    Cannot know: whether what was timed alone costs the same inside the loop.
    """
    factor, told = _number(value), source(graph)
    if told is None or factor == 1:
        return graph
    own_ns = draw.ratio("loader's own", *(LOADER_OWN_NS if factor < 1 else LOADER_OWN_NS[::-1]))
    if not told.feeding.workers:
        return graph.scaled_before({"loader": _but_for(own_ns, loading_ns(graph), factor)})
    built_ns = graph.limits_ns.get(WORKERS, float(told.feeding.step_ns))
    paced_ns = built_ns * _but_for(own_ns, built_ns, factor)
    taken = graph.scaled_before({"loader": _handover(graph, told, draw)})
    return replace(taken, limits_ns={**graph.limits_ns, WORKERS: paced_ns})


def _but_for(own_ns: float, now_ns: float, factor: float) -> float:
    """By how much a fetch changes where all of it but so much does by a factor."""
    return factor + (1 - factor) * min(1.0, own_ns / max(1.0, now_ns))


def _count(graph: Graph, told: Source, value: Value) -> int:
    if value is True:
        return worth_having(told.feeding, graph.run.machine.cores_allowed)
    return int(_number(value))


def _number(value: Value) -> float:
    assert not isinstance(value, str), "what was typed is a number by now"
    return float(value)


def _rebuilt(graph: Graph) -> bool:
    """Whether another rewrite changed what a batch costs the workers there are."""
    return WORKERS in graph.limits_ns


def loading_ns(graph: Graph) -> float:
    """What the loader takes of a typical step of this graph."""
    return host_step_ns(graph, graph.host.before_ns["loader"])


def _batch_ns(graph: Graph, told: Source, count: int, draw: Draw) -> float | None:
    """What one batch costs over so many workers; None where they keep up anyhow."""
    before = told.feeding.workers or 0
    if not before:
        alone_ns = loading_ns(graph)
    else:
        # What they take now holds for as many as there are: the crowd they are part of is taken out.
        paced_ns = graph.limits_ns.get(WORKERS, float(told.feeding.step_ns)) * before
        if not told.late:
            if count >= before:
                return None
            paced_ns = draw.ratio("what workers take", max(1, told.feeding.worker_cpu_ns or 1), paced_ns)
        alone_ns = paced_ns / _slower(graph, told, before, draw)
    return alone_ns * _slower(graph, told, count, draw) / count


def _slower(graph: Graph, told: Source, count: int, draw: Draw) -> float:
    return 1.0 + draw.between("workers crowd", *CROWD) * count / _cores(graph, draw, count) * told.busy_frac


def _cores(graph: Graph, draw: Draw, count: int = 1) -> float:
    return graph.run.machine.cores_allowed or count * draw.ratio("cores", *CORES_EACH)


def _packed_ns(graph: Graph, told: Source, demand_ns: float, count: int, draw: Draw) -> float:
    """What the cores need for a step's CPU time; for workers there are already, no more than they were seen to need."""
    packing = 1 + (_packing(graph, draw) - 1) * told.busy_frac
    needed_ns = demand_ns / _left(graph, told, count) * packing
    if told.feeding.workers:
        seen_ns = float(told.feeding.step_ns)
        return min(needed_ns, max(seen_ns, graph.limits_ns.get(WORKERS, 0.0)))
    return needed_ns


def _left(graph: Graph, told: Source, count: int) -> float:
    """The cores that other programs leave: what they do not use, and no less than an equal share for every process."""
    allowed = graph.run.machine.cores_allowed or 1.0
    processes = 1 + count * told.busy_frac
    return max(allowed - told.others, allowed * processes / (processes + told.others))


def _demand_ns(graph: Graph, told: Source) -> float | None:
    """CPU time of a batch and of the rest of its step; None where it, or how many cores there are, is not known."""
    seen = told.feeding
    cpu_ns = seen.worker_cpu_ns if seen.workers else seen.fetch_cpu_ns
    if cpu_ns is None or seen.rest_cpu_ns is None or graph.run.machine.cores_allowed is None:
        return None
    if seen.workers:
        changed = graph.limits_ns.get(WORKERS, seen.step_ns) / seen.step_ns
    else:
        changed = loading_ns(graph) / max(1, seen.fetch_ns)
    return cpu_ns * changed + seen.rest_cpu_ns


def _packing(graph: Graph, draw: Draw) -> float:
    threads = graph.run.facts.get("threads", "")
    several = threads.isdigit() and int(threads) > 1 and not graph.on_gpu
    return draw.between("packing", *(PACKED_THREADS if several else PACKED))


def _handover(graph: Graph, told: Source, draw: Draw) -> float:
    """What is left of the time in the DataLoader once others build the batches, 0-1 and more."""
    size = _batch_bytes(graph)
    if size is None:
        taking_ns = draw.ratio("handover", *HANDOVER_NS)
    else:
        taking_ns = (HANDOVER_LEAST_NS + size * HANDOVER_NS_PER_BYTE) * draw.ratio("handover of a size", 0.5, 2.0)
    now_ns = loading_ns(graph)
    if told.feeding.workers:  # they are taken over already
        taking_ns = min(taking_ns, now_ns)
    return taking_ns / max(1.0, now_ns)


@once
def _batch_bytes(graph: Graph) -> float | None:
    """What a step copies to the GPU; None where that is not told."""
    if not graph.on_gpu:
        return None
    found = writes(graph)
    inside = (graph.step_of[found.call] >= 0) & (found.bytes >= 0)
    return float(found.bytes[inside].sum() / len(graph.step_first)) if inside.any() else None


def _crowded(graph: Graph, busy_frac: float, draw: Draw) -> Graph:
    """The main thread and copies from pageable memory beside workers that compute."""
    slower = 1.0 + draw.between("main thread crowd", *MAIN) * busy_frac
    parts = [part for part in graph.host.before_ns if part not in ("loader", "overlap")]
    slow = graph.scaled_before(dict.fromkeys(parts, slower)).with_host(own_ns=graph.host.own_ns * slower)
    if not graph.on_gpu:
        return slow
    found = writes(graph)
    dur = graph.device.dur_ns.copy()
    dur[found.work[found.pageable]] *= 1.0 + (draw.between("pageable crowd", *PAGEABLE) - 1.0) * busy_frac
    return slow.with_device(dur_ns=dur)


def _no_loader(graph: Graph, value: Value) -> str | None:
    told = source(graph)
    if told is None:
        return "it used no DataLoader"
    return None if loading_ns(graph) > 0 else "no time in a DataLoader was recorded"


def _lacking(graph: Graph, value: Value) -> str | None:
    why = _no_loader(graph, value)
    told = source(graph)
    if why is not None or told is None:
        return why
    before = told.feeding.workers
    if before is None:
        return "it does not tell how many workers there were"
    fewer = value is not True and _number(value) < before
    if fewer and not told.late and told.feeding.worker_cpu_ns is None:
        return "its workers keep up, so what a batch costs them was not measured"
    return None


def _lacking_cost(graph: Graph, value: Value) -> str | None:
    why, told = _no_loader(graph, value), source(graph)
    if why is not None or told is None or told.late or _number(value) < 1:
        return why
    return "its workers keep up, so what a batch costs them was not measured"


def whole_workers(text: str) -> Value:
    """A number of worker processes, from what was typed."""
    if not text.isdigit() or not int(text):
        raise ValueError(f"{text!r} is no number of processes; 0 would be the main process")
    return int(text)


def times(text: str) -> Value:
    """A factor, as "0.5" or "x0.5"."""
    try:
        factor = float(text.removeprefix("x"))
    except ValueError:
        factor = -1.0
    if not 0 <= factor < 1e6:
        raise ValueError(f"{text!r} is no factor")
    return factor


def _code(graph: Graph, value: Value) -> str:
    told = source(graph)
    count = _count(graph, told, value) if told else int(_number(value))
    return f"# in your DataLoader(...): num_workers={count}, persistent_workers=True"


FREE_INPUT = Rewrite(
    name="free_input",
    edit=free_input,
    ceiling=lambda graph, value: free(graph),
    grade="A",
    about="batches that are there at once",
    bound=True,
    ceiling_means="even free data",
    lacking=_no_loader,
)
ITEM_COST = Rewrite(
    name="item_cost",
    edit=item_cost,
    ceiling=lambda graph, value: free(graph),
    grade="B",
    about="batches that take F times as long to build",
    ceiling_means="even free data",
    lacking=_lacking_cost,
    takes="how many times as long a batch then takes to build, as 0.5",
    usual=None,
    parse=times,
)
WORKER_PROCESSES = Rewrite(
    name="workers",
    edit=workers,
    ceiling=lambda graph, value: free(graph),
    grade="B",
    about="batches built by N worker processes",
    ceiling_means="even free data",
    lacking=_lacking,
    takes="a number of processes",
    parse=whole_workers,
    price="memory for each process, and for the batches it holds ready",
    code=_code,
)
# In the order in which they are made: what a batch costs comes before who builds it.
FEEDING = (ITEM_COST, WORKER_PROCESSES, FREE_INPUT)
