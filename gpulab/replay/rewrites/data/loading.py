"""Data loading: instant batches, batches from N workers, and batches that cost more or less to load."""

from __future__ import annotations

from dataclasses import replace

from gpulab.replay.graph.graph import CORE_LIMIT, WORKER_LIMIT, Graph
from gpulab.replay.rewrite import LOADING_BOUND, Draw, Rewrite, Value
from gpulab.replay.rewrites.copies.pin_and_prefetch import h2d_copies
from gpulab.replay.rewrites.data.batch_passing import added_receiving_ns, added_sending_ns, receiving_ns
from gpulab.replay.rewrites.data.batch_source import BatchLoading, batch_loading, variation_factor
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.sweep import host_step_ns
from gpulab.replay.worker_count_model import recommended_workers
from gpulab.run_facts import count_from_fact

HANDOVER_NS = (100_000.0, 1_500_000.0)  # taking a ready batch: measured from tiny ones to 19 MB, which took 1.4 ms
MIN_HANDOVER_NS, HANDOVER_NS_PER_BYTE = 100_000.0, 1.3e6 / 19e6
WORKER_SLOWDOWN = (0.1, 0.4)  # slowdown of a worker, times workers over cores: shared caches, memory, clocks
MAIN_SLOWDOWN = (0.03, 0.12)  # slowdown of the main thread: 5-10 % measured
CORES_PER_WORKER = (8.0, 2.0)  # cores per worker if the number of cores is unknown
PAGEABLE_SLOWDOWN = (1.3, 1.9)  # slowdown of pageable copies while workers are busy: 9.9 GB/s became 5.3-6.5
# If cores are the limit, processes also wait for their turn: two workers and one thread on two cores took
# 1.36 times the CPU time over the cores. With several threads per operator, which wait for each other: 1.8 times.
PACKING, PACKING_THREADS = (1.1, 1.5), (1.3, 1.9)
# Part of a fetch that is not loading: sampler, queue, the loader's own Python in a cold cache.
LOADER_OVERHEAD_NS = (50_000.0, 300_000.0)


def free_input(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Every batch is ready at once: `next()` of the DataLoader iterator takes no time, and no worker delays the step.

    An upper bound, not a model: no number of workers, no storage and no cheaper decoding can give more than this.
    """
    return without_loading(graph)


def without_loading(graph: Graph) -> Graph:
    """Return the graph without any loading time."""
    limits_ns = {name: ns for name, ns in graph.limits_ns.items() if name not in (WORKER_LIMIT, CORE_LIMIT)}
    return replace(graph.scaled_before({"loader": 0.0}), limits_ns=limits_ns, waiting_ns=0.0)


def workers(graph: Graph, value: Value, draw: Draw) -> Graph:
    """N DataLoader workers load the batches while the model trains on earlier ones.

    Models: batches come from a queue that N workers fill.
     * Hand-over: the worker pickles a batch and copies its tensors to shared memory, and `next()` of the iterator maps
       them: 0.1-0.65 ms per batch, 0.08-0.4 ms per tensor, 0.05-1.6 ms per MB. If only the size of a batch is known,
       `next()` takes 0.1 ms plus 0.07 ms per MB; if that is unknown too, 0.1-1.5 ms
     * Workers: a step takes the load time of one batch divided by N, or longer; on a CPU, the range allows for loading
       that gets faster when nothing interrupts it, but not for shorter waits, as for storage. The load time is measured
       in the main process without workers, or follows from the batch rate of workers that could not keep up
     * Queue: `prefetch_factor` batches per worker, served round-robin, are simulated with the measured variation,
       because one slow batch delays those behind it
     * Cores: a step is no shorter than (CPU time to load a batch + CPU time of the rest of the step) / free cores x
       1.1-1.5. The factor is 1.3-1.9 if the model computes on several threads (measured with two workers and one thread
       on two cores)
     * Contention: loading a batch takes (0.1-0.4) x N / cores longer in a worker than in the main process (as a share
       of its time); the main thread slows down by 3-12 %; copies from pageable memory take 1.3-1.9 times as long
       (measured on a V100 with four workers). These slowdowns are scaled with the CPU share of loading; workers that
       wait slow nothing down

    Cannot know: whether storage serves N readers as fast as one, and what starting the workers costs: once, or in each
    epoch without persistent_workers.
    """
    batches = batch_loading(graph)
    if batches is None:
        return graph
    count = _count(graph, batches, value)
    if batches.loading.workers == count and not _load_time_changed(graph):
        return graph
    cost_ns = _batch_ns(graph, batches, count, draw)
    limits, waiting_ns = dict(graph.limits_ns), 0.0
    if cost_ns is not None:
        limits[WORKER_LIMIT] = cost_ns * variation_factor(graph, count)
        waiting_ns = cost_ns * (1 - batches.busy_frac)
        demand_ns = _demand_ns(graph, batches, draw)
        if demand_ns is not None:
            limits[CORE_LIMIT] = _cpu_limit_ns(graph, batches, demand_ns, count, draw)
    taken_over = graph.scaled_before({"loader": _handover(graph, batches, draw)})
    if not batches.loading.workers:  # with workers, the recording includes the slowdown already
        taken_over = _slowed_by_workers(taken_over, batches.busy_frac, draw)
    return replace(taken_over, limits_ns=limits, waiting_ns=waiting_ns)


def item_cost(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Loading a batch takes F times as long: 0.5 for half the time, 2 for twice the time.

    Models: F times the time this run measured: in `next()` of the DataLoader iterator without workers, or from the pace
    of workers that are too few. Time both ways of loading alone (`%timeit next(iter(loader))`); their ratio is F. 0.05
    to 0.3 ms of a fetch are overhead of the DataLoader and do not change.

    Cannot know: whether what was timed alone costs the same inside the loop.
    """
    factor, batches = _number(value), batch_loading(graph)
    if batches is None or factor == 1:
        return graph
    overhead_ns = draw.ratio("loader's own", *(LOADER_OVERHEAD_NS if factor < 1 else LOADER_OVERHEAD_NS[::-1]))
    if not batches.loading.workers:
        return graph.scaled_before({"loader": _factor_except(overhead_ns, loading_ns(graph), factor)})
    built_ns = graph.limits_ns.get(WORKER_LIMIT, float(batches.loading.step_ns))
    paced_ns = built_ns * _factor_except(overhead_ns, built_ns, factor)
    taken_over = graph.scaled_before({"loader": _handover(graph, batches, draw)})
    return replace(taken_over, limits_ns={**graph.limits_ns, WORKER_LIMIT: paced_ns})


def _factor_except(overhead_ns: float, now_ns: float, factor: float) -> float:
    """Return the factor on a fetch if all of it except `overhead_ns` is multiplied by `factor`."""
    return factor + (1 - factor) * min(1.0, overhead_ns / max(1.0, now_ns))


def _count(graph: Graph, batches: BatchLoading, value: Value) -> int:
    if value is True:
        return recommended_workers(batches.loading, graph.run.machine.cores_allowed)
    return int(_number(value))


def _number(value: Value) -> float:
    assert not isinstance(value, str), "the parser returns a number"
    return float(value)


def _load_time_changed(graph: Graph) -> bool:
    """Return whether another rewrite changed the load time of the present workers."""
    return WORKER_LIMIT in graph.limits_ns


def loading_ns(graph: Graph) -> float:
    """Return the time in the DataLoader per typical step of this graph."""
    return host_step_ns(graph, graph.host.before_ns["loader"])


def _batch_ns(graph: Graph, batches: BatchLoading, count: int, draw: Draw) -> float | None:
    """Return the load time of one batch over this many workers; None if the workers keep up anyway."""
    before = batches.loading.workers or 0
    if not before:
        alone_ns = loading_ns(graph) + added_sending_ns(batches.loading, draw)
    else:
        # The present pace includes the slowdown by the present number of workers; divide it out.
        paced_ns = graph.limits_ns.get(WORKER_LIMIT, float(batches.loading.step_ns)) * before
        if not batches.too_few_workers:
            if count >= before:
                return None
            paced_ns = draw.ratio("what workers take", max(1, batches.loading.worker_cpu_ns or 1), paced_ns)
        alone_ns = paced_ns / _slowdown(graph, batches, before, draw)
    return alone_ns * _slowdown(graph, batches, count, draw) / count


def _slowdown(graph: Graph, batches: BatchLoading, count: int, draw: Draw) -> float:
    return (
        1.0 + draw.between("workers crowd", *WORKER_SLOWDOWN) * count / _cores(graph, draw, count) * batches.busy_frac
    )


def _cores(graph: Graph, draw: Draw, count: int = 1) -> float:
    return graph.run.machine.cores_allowed or count * draw.ratio("cores", *CORES_PER_WORKER)


def _cpu_limit_ns(graph: Graph, batches: BatchLoading, demand_ns: float, count: int, draw: Draw) -> float:
    """Return the time the cores need for a step's CPU time; with present workers, no more than was measured."""
    packing = 1 + (_packing_factor(graph, draw) - 1) * batches.busy_frac
    needed_ns = demand_ns / _available_cores(graph, batches, count) * packing
    if batches.loading.workers:
        measured_ns = float(batches.loading.step_ns)
        return min(needed_ns, max(measured_ns, graph.limits_ns.get(WORKER_LIMIT, 0.0)))
    return needed_ns


def _available_cores(graph: Graph, batches: BatchLoading, count: int) -> float:
    """Return the cores that other programs leave: those unused, but at least an equal share for every process."""
    allowed = graph.run.machine.cores_allowed or 1.0
    processes = 1 + count * batches.busy_frac
    return max(allowed - batches.cores_of_others, allowed * processes / (processes + batches.cores_of_others))


def _demand_ns(graph: Graph, batches: BatchLoading, draw: Draw) -> float | None:
    """Return the CPU time of a batch and of the rest of its step; None if it or the number of cores is unknown."""
    loading = batches.loading
    cpu_ns = loading.worker_cpu_ns if loading.workers else loading.fetch_cpu_ns
    if cpu_ns is None or loading.rest_cpu_ns is None or graph.run.machine.cores_allowed is None:
        return None
    if loading.workers:
        change = graph.limits_ns.get(WORKER_LIMIT, loading.step_ns) / loading.step_ns
    else:
        change = loading_ns(graph) / max(1, loading.fetch_ns)
    passing_ns = added_sending_ns(loading, draw) + added_receiving_ns(loading, draw)
    return cpu_ns * change + loading.rest_cpu_ns + passing_ns


def _packing_factor(graph: Graph, draw: Draw) -> float:
    several = (count_from_fact(graph.run, "threads") or 0) > 1 and not graph.on_gpu
    return draw.between("packing", *(PACKING_THREADS if several else PACKING))


def _handover(graph: Graph, batches: BatchLoading, draw: Draw) -> float:
    """Return the remaining fraction of the time in the DataLoader if workers load the batches; it may exceed 1."""
    size, setup = _batch_bytes(graph), batches.loading.loader
    received_ns = receiving_ns(batches.loading, draw)
    if received_ns is not None and not (setup and setup.pin_memory):  # else a thread receives the batch
        taking_ns = received_ns
    elif size is None:
        taking_ns = batches.loading.batches * draw.ratio("handover", *HANDOVER_NS)
    else:
        taking_ns = batches.loading.batches * MIN_HANDOVER_NS + size * HANDOVER_NS_PER_BYTE
        taking_ns *= draw.ratio("handover of a size", 0.5, 2.0)
    now_ns = loading_ns(graph)
    if batches.loading.workers:  # batches are taken over already
        taking_ns = min(taking_ns, now_ns)
    return taking_ns / max(1.0, now_ns)


@cached_per_run
def _batch_bytes(graph: Graph) -> float | None:
    """Return the bytes that a step copies to the GPU; None if unknown."""
    if not graph.on_gpu:
        return None
    copies = h2d_copies(graph)
    inside = (graph.step_of[copies.call] >= 0) & (copies.bytes >= 0)
    return float(copies.bytes[inside].sum() / len(graph.step_start_node)) if inside.any() else None


def _slowed_by_workers(graph: Graph, busy_frac: float, draw: Draw) -> Graph:
    """Slow down the main thread and pageable copies, because workers compute at the same time."""
    slower = 1.0 + draw.between("main thread crowd", *MAIN_SLOWDOWN) * busy_frac
    parts = [part for part in graph.host.before_ns if part not in ("loader", "overlap")]
    slowed = graph.scaled_before(dict.fromkeys(parts, slower)).with_host(call_ns=graph.host.call_ns * slower)
    if not graph.on_gpu:
        return slowed
    copies = h2d_copies(graph)
    dur = graph.device.dur_ns.copy()
    dur[copies.ops[copies.pageable]] *= 1.0 + (draw.between("pageable crowd", *PAGEABLE_SLOWDOWN) - 1.0) * busy_frac
    return slowed.with_device(dur_ns=dur)


def _no_loader(graph: Graph, value: Value) -> str | None:
    batches = batch_loading(graph)
    if batches is None:
        return "the run uses no DataLoader"
    return None if loading_ns(graph) > 0 else "no time in the DataLoader was recorded"


def _workers_refusal(graph: Graph, value: Value) -> str | None:
    reason = _no_loader(graph, value)
    batches = batch_loading(graph)
    if reason is not None or batches is None:
        return reason
    before = batches.loading.workers
    if before is None:
        return "the number of DataLoader workers was not recorded"
    fewer = value is not True and _number(value) < before
    if fewer and not batches.too_few_workers and batches.loading.worker_cpu_ns is None:
        return "the present workers keep up, so their load time per batch was not measured"
    return None


def _item_cost_refusal(graph: Graph, value: Value) -> str | None:
    reason, batches = _no_loader(graph, value), batch_loading(graph)
    if reason is not None or batches is None or batches.too_few_workers or _number(value) < 1:
        return reason
    return "the present workers keep up, so their load time per batch was not measured"


def parse_worker_count(text: str) -> Value:
    """Parse a number of worker processes."""
    if not text.isdigit() or not int(text):
        raise ValueError(f"{text!r} is not a positive number of processes (0 would be the main process)")
    return int(text)


def parse_factor(text: str) -> Value:
    """Parse a factor, such as "0.5" or "x0.5"."""
    try:
        factor = float(text.removeprefix("x"))
    except ValueError:
        factor = -1.0
    if not 0 <= factor < 1e6:
        raise ValueError(f"{text!r} is not a factor such as 0.5")
    return factor


def _code(graph: Graph, value: Value) -> str:
    batches = batch_loading(graph)
    count = _count(graph, batches, value) if batches else int(_number(value))
    return f"# in your DataLoader(...): num_workers={count}, persistent_workers=True"


FREE_INPUT = Rewrite(
    name="free_input",
    needs_operators=True,
    edit=free_input,
    best_case=lambda graph, value: without_loading(graph),
    grade="A",
    about="data loading at no cost",
    bound_only=True,
    bound_label=LOADING_BOUND,
    refusal_reason=_no_loader,
)
ITEM_COST = Rewrite(
    name="item_cost",
    needs_operators=True,
    edit=item_cost,
    best_case=lambda graph, value: without_loading(graph),
    grade="B",
    about="batches that take F times as long to load",
    bound_label=LOADING_BOUND,
    refusal_reason=_item_cost_refusal,
    value_help="a factor on the load time of a batch, such as 0.5",
    default=None,
    parse=parse_factor,
)
WORKER_PROCESSES = Rewrite(
    name="workers",
    needs_operators=True,
    edit=workers,
    best_case=lambda graph, value: without_loading(graph),
    grade="B",
    about="batches loaded by N DataLoader workers",
    bound_label=LOADING_BOUND,
    refusal_reason=_workers_refusal,
    value_help="a number of processes",
    parse=parse_worker_count,
    cost="memory for each process and its prefetched batches",
    code=_code,
)
# In the order in which they are applied: the cost of a batch before the number of workers.
LOADING_REWRITES = (ITEM_COST, WORKER_PROCESSES, FREE_INPUT)
