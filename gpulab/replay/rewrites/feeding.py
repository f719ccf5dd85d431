"""What feeds the model: batches that cost nothing, that worker processes build, that are cheaper or dearer to build."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpulab.analysis.loader import Feeding, feeding, loader_events
from gpulab.analysis.steps import Steps
from gpulab.replay.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.copies import writes
from gpulab.replay.rewrites.once import once
from gpulab.replay.sweep import typical
from gpulab.replay.workers import batch_ns, worth_having
from gpulab.run import Run
from gpulab.tables import MarkKind

WORKERS, CORES = "the workers", "the cores"  # limits, by the names that people read

HANDOVER_NS = (100_000.0, 1_500_000.0)  # taking a ready batch: seen from tiny ones to 19 MB, which took 1.4 ms
HANDOVER_LEAST_NS, HANDOVER_NS_PER_BYTE = 100_000.0, 1.3e6 / 19e6
CROWD = (0.1, 0.4)  # a worker is so much slower, times workers over cores: shared caches, memory, clocks
MAIN = (0.03, 0.12)  # and the main thread so much, whatever it does: 5-10 % was seen
CORES_EACH = (8.0, 2.0)  # cores for each worker, where nobody said how many there are
PAGEABLE = (1.3, 1.9)  # copies from ordinary memory beside busy workers: 9.9 GB/s became 5.3-6.5
# Where the cores are the limit nobody gets them without a pause: two workers and one thread on two cores took
# 1.1-1.4 times the CPU time over the cores. Threads of one operator wait for one another as well: 1.2-1.8.
PACKED, PACKED_THREADS = (1.05, 1.4), (1.2, 1.8)
UNSCALED = (0.0, 0.1)  # of a fetch that is no building of items: the sampler, the loader's own Python
LATE_FRAC = 0.05  # workers that hold the model up for less of a step keep up with it
PREFETCHED = 2  # batches a worker builds ahead, unless set otherwise
SIMULATED = 400  # batches; more change the result by less than one per cent
MANY = 64  # workers beyond which more make no difference to how evenly batches come


@dataclass(frozen=True, kw_only=True)
class Source:
    """Who builds the batches in the recording, and how long that takes."""

    feeding: Feeding
    late: bool  # workers, if any, hold the model up: then they are never idle, and the step tells what a batch costs
    busy_frac: float  # of the time a batch takes, what is CPU work and no waiting
    shares: Floats  # how long batches take over the typical one, as measured; empty where it was not
    prefetch: int


@once
def source(graph: Graph) -> Source | None:
    """What the run tells of its feeding; None where it used no DataLoader."""
    told = feeding(graph.run, graph.steps, graph.ledger)
    if told is None:
        return None
    built_ns = batch_ns(told)
    cpu_ns = told.worker_cpu_ns if told.workers else told.fetch_cpu_ns
    setup = told.setup
    return Source(
        feeding=told,
        late=not told.workers or told.exposed_ns > LATE_FRAC * told.step_ns,
        busy_frac=min(1.0, cpu_ns / max(1, built_ns)) if cpu_ns is not None else 1.0,
        shares=_shares(graph.run, graph.steps) if told.workers == 0 else np.empty(0),
        prefetch=(setup.prefetch_factor if setup else None) or PREFETCHED,
    )


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

    What the main thread spends in `DataLoader.__next__` becomes the taking over of a ready batch: 0.1 ms and 0.07 ms
    a MB, or 0.1-1.5 ms where its size is not known. A step cannot be shorter than one batch over N workers; what a
    batch takes is measured: in the main process without workers, or by the pace of workers that are late. A queue of
    `prefetch_factor` batches for each worker, given out in turn, is simulated with the measured spread, as one slow
    batch holds up those behind it. Nor can it be shorter than the CPU time of a batch and of the rest of the step over
    the cores, times 1.05-1.4 (1.2-1.8 if the model computes on several threads), as two workers and one thread on two
    cores showed. A worker is slower than the main process was by 0.1-0.4 x N / cores, the main thread by 3-12 %, and
    copies from pageable memory take 1.3-1.9 times as long (measured on a V100 with four workers); of all of these only
    the share that building computes and does not wait counts. Not known: whether storage answers N at once as it does
    one, and what starting workers costs each epoch.
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
        limits[WORKERS] = cost_ns * _unevenness(graph, told, count)
        demand_ns = _demand_ns(graph, told)
        if demand_ns is not None:
            limits[CORES] = demand_ns / _cores(graph, draw) * _packing(graph, draw)
    taken = graph.scaled_before({"loader": _handover(graph, told, draw)})
    if not told.feeding.workers:  # with some of them the recording was as crowded
        taken = _crowded(taken, told.busy_frac, draw)
    return replace(taken, limits_ns=limits)


def item_cost(graph: Graph, value: Value, draw: Draw) -> Graph:
    """To build a batch takes F times as long: 0.5 for half the time, 2 for twice.

    Priced by what this run measured: without workers the time in `DataLoader.__next__`, with workers that are late the
    pace they set. Time both ways of building alone (`%timeit next(iter(loader))`), and their ratio is F. Up to a tenth
    of a fetch is the loader's own and stays. Not known: whether what was timed alone costs the same inside the loop.
    """
    factor, told = _number(value), source(graph)
    if told is None or factor == 1:
        return graph
    factor += (1 - factor) * draw.between("loader's own", *UNSCALED)
    if not told.feeding.workers:
        return graph.scaled_before({"loader": factor})
    paced_ns = graph.limits_ns.get(WORKERS, float(told.feeding.step_ns)) * factor
    taken = graph.scaled_before({"loader": _handover(graph, told, draw)})
    return replace(taken, limits_ns={**graph.limits_ns, WORKERS: paced_ns})


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


def fetch_ns(graph: Graph) -> float:
    """What the main thread spends in the DataLoader in a typical step of this graph."""
    done = np.cumsum(graph.host.before_ns["loader"])
    return typical(done[graph.step_last] - done[graph.step_first], graph.steps.burst)


def _batch_ns(graph: Graph, told: Source, count: int, draw: Draw) -> float | None:
    """What one batch costs over so many workers; None where they keep up anyhow."""
    before = told.feeding.workers or 0
    if not before:
        alone_ns = fetch_ns(graph)
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


def _demand_ns(graph: Graph, told: Source) -> float | None:
    """CPU time of a batch and of the rest of its step; None where it, or how many cores there are, is not known."""
    seen = told.feeding
    cpu_ns = seen.worker_cpu_ns if seen.workers else seen.fetch_cpu_ns
    if cpu_ns is None or seen.rest_cpu_ns is None or graph.run.machine.cores_allowed is None:
        return None
    if seen.workers:
        changed = graph.limits_ns.get(WORKERS, seen.step_ns) / seen.step_ns
    else:
        changed = fetch_ns(graph) / max(1, seen.fetch_ns)
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
    now_ns = fetch_ns(graph)
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


def _shares(run: Run, steps: Steps) -> Floats:
    """How long each fetch took over the typical one, in the steps that are evidence."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    if len(calls):
        start, took = calls["start_ns"], calls["end_ns"] - calls["start_ns"]
        use = steps.plain if steps.plain_ns is not None else steps.interior
    else:
        events = loader_events(run)
        start, took, use = events["start_ns"], events["dur_ns"], steps.interior
    order = np.argsort(start, kind="stable")
    first = np.searchsorted(start[order], steps.start_ns[use])
    took = took[order][first[first < len(order)]].astype(float)
    middle = float(np.median(took)) if len(took) else 0.0
    # The worst twentieth is what the machine did meanwhile, not what a batch costs.
    return np.minimum(took / middle, np.percentile(took / middle, 95)) if middle > 0 else np.empty(0)


def _unevenness(graph: Graph, told: Source, count: int) -> float:
    """How much longer than evenly spread batches the measured ones take `count` workers, never more than fewer do."""
    table = _uneven(graph)
    return float(table[min(count, MANY)]) if len(table) else 1.0


@once
def _uneven(graph: Graph) -> Floats:
    told = source(graph)
    if told is None or len(told.shares) < 4:
        return np.empty(0)
    took = np.random.default_rng(0).choice(told.shares, SIMULATED)
    each = np.array([np.inf, *(queue_ns(took, count, told.prefetch) * count for count in range(1, MANY + 1))])
    # Per batch a crew must not be slower than a smaller one: chance in the order of batches is none of the model's.
    counts = np.arange(MANY + 1)
    return np.minimum.accumulate(each / np.maximum(counts, 1)) * np.maximum(counts, 1)


def queue_ns(took_ns: Floats, count: int, prefetch: int) -> float:
    """The mean time from batch to batch, where `count` workers build them in turn and nothing else takes time.

    Batch k is built by worker k mod count, and asked for when batch k - prefetch * count is taken.
    """
    ready: list[float] = []
    taken: list[float] = []
    ahead = prefetch * count
    for number, took in enumerate(took_ns.tolist()):
        free_ns = ready[number - count] if number >= count else 0.0
        asked_ns = taken[number - ahead] if number >= ahead else 0.0
        ready.append(max(free_ns, asked_ns) + took)
        taken.append(max(ready[-1], taken[-1] if taken else 0.0))
    return taken[-1] / len(taken)


def _no_loader(graph: Graph, value: Value) -> str | None:
    told = source(graph)
    if told is None:
        return "it used no DataLoader"
    return None if fetch_ns(graph) > 0 else "no time in a DataLoader was recorded"


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
    return f"loader = DataLoader(..., num_workers={count}, persistent_workers=True)"


FREE_INPUT = Rewrite(
    name="free_input",
    edit=free_input,
    ceiling=lambda graph, value: free(graph),
    grade="A",
    about="batches that are there at once",
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
