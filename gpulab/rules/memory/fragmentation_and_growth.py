"""Rules about GPU memory: cudaMalloc/cudaFree in every step, fragmentation, leaks, and unused memory."""

from __future__ import annotations

from gpulab.analysis.memory.allocator import AllocatorUse, DriverAllocations, driver_allocations, gpu_memory
from gpulab.analysis.memory.growth import MIN_GROWTH_STEPS, Growth, memory_growths
from gpulab.analysis.memory.holders import GrowingList, growing_lists
from gpulab.hardware.lookup import spec_of
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Finding, Unjudged, known_numbers
from gpulab.rules.engine.pasted_names import is_variable
from gpulab.rules.engine.phrases import duration_in_step, idle_share, per_step
from gpulab.rules.memory.oom_fixes import ALLOCATOR_SETTING
from gpulab.wording import count, duration, percent, size

_MIN_ALLOC_FRAC = 0.03  # of a step; the fix is to remove a call, or one setting
_NEARLY_ALL_FRAC = 0.999  # a larger share is shown as "> 99.9 %", never as "100 %"
_MIN_FRAGMENTED_FRAC = 0.20  # of reserved memory; blocks of 2 and 20 MiB leave at most a fifth unused in a healthy run
_NEARLY_FULL_FRAC = 0.80  # of the GPU; if more memory is free, unused reserved memory is only a cache
_MIN_GROWTH_FRAC = 0.02  # of the first reading: caches and string tables grow, too
_MIN_GROWTH_BYTES = 16 << 20
_PEAK_SLOPE_RATIO = (
    1.5  # a leak raises the peak as much as the memory between steps; growing inputs raise the peak far more
)
_LONGER_STEP_FRAC = 0.3  # if steps get this much longer over the run, the inputs grow
_URGENT_RUNS = 20  # urgent if memory runs out within this many runs of the recorded length
_MAX_USED_FRAC = 0.5  # more than half is free
_UNKNOWN_CAPACITY = Unjudged(
    reason="the memory size of the GPU is unknown",
    fix="profile with %%gpuprofile on a machine with an NVIDIA GPU and NVML",
)


def allocator_thrash(evidence: Evidence) -> Finding | Unjudged | None:
    """PyTorch calls cudaMalloc and cudaFree in every step, instead of reusing cached memory.

    Proof: `cudaMalloc` and `cudaFree` calls in the interior steps, the GPU idle while the host is inside them, and a
    rising count of driver requests in PyTorch's own statistics.

    Confused with: the first steps, which fill the cache and do not count; expandable segments, which map memory with
    other calls; libraries that allocate outside PyTorch, where PyTorch's own count does not rise.

    What to do: remove `torch.cuda.empty_cache()` from the loop. If PyTorch emptied the cache because the GPU was full,
    use expandable segments, batches of one shape, or a smaller batch.
    """
    calls = evidence.cached(driver_allocations)
    share = evidence.part_share("alloc")
    if calls is None or not calls.mallocs or (share < _MIN_ALLOC_FRAC and not calls.retries):
        return None
    if not calls.frees and not calls.retries:
        return None  # memory that is never freed grows, which is another cause
    if (unjudged := _unjudged_calls(evidence, calls)) is not None:
        return unjudged
    exposed_ns = evidence.typical_step.sum_ns("alloc")
    return Finding(
        ledger_parts=("alloc",),
        claim=f"{idle_share(evidence, share, 'calling cudaMalloc/cudaFree in every step')}{_reason_clause(calls)}.",
        evidence=_call_evidence(evidence, calls, exposed_ns),
        numbers=known_numbers(
            exposed_frac=share,
            exposed_ns=exposed_ns,
            asked_per_step=calls.mallocs,
            freed_per_step=calls.frees,
            retries=calls.retries,
        ),
        fix=_expandable() if calls.retries else "",
        advice=" ".join(_cache_advice(calls)),
        gain=evidence.gain_of_named_rewrites(
            "no_alloc",
            evidence.gain_of_removing(
                exposed_ns,
                "removing 70 to 100 % of the idle time inside these calls",
                "allocation at no cost",
                spans=evidence.ledger.spans["alloc"],
            ),
        ),
        rewrites=evidence.applicable_rewrites("no_alloc"),
        confidence=CERTAIN if calls.by_pytorch else LIKELY,
        spans=evidence.ledger.spans["alloc"],
    )


def _unjudged_calls(evidence: Evidence, calls: DriverAllocations) -> Unjudged | None:
    """Return why these calls may not be PyTorch's, or not in every step; None if they are."""
    if evidence.steps.detected_by == "whole run" or evidence.steps.too_few:
        why = "there are cudaMalloc calls, but too few steps to know whether they only fill the cache"
        fix = "record more steps"
    elif calls.by_pytorch is False:
        frequency = count(calls.mallocs, "time")
        why = f"cudaMalloc is called {frequency} per step by a library, not by PyTorch's allocator"
        fix = "record with --level deep and look for the call on the timeline"
    else:
        return None
    return Unjudged(reason=why, fix=fix)


def _reason_clause(calls: DriverAllocations) -> str:
    if calls.retries is None:
        return ""
    return ", because the GPU is full" if calls.retries else ", although the GPU is not full"


def _cache_advice(calls: DriverAllocations) -> tuple[str, ...]:
    """Return the advice for a full GPU, for one that is not full, or both if that is unknown."""
    keep_cache = (
        "Remove torch.cuda.empty_cache() from the loop: PyTorch would reuse the memory that it returns, and now each "
        "step waits for the driver."
    )
    free_memory = (
        "Use batches of one shape (pad or bucket them), and a smaller batch, so that some GPU memory stays free."
    )
    if calls.retries is None:
        return keep_cache, f"If there is no such call, the GPU is full: {free_memory[:1].lower()}{free_memory[1:]}"
    return (free_memory,) if calls.retries else (keep_cache,)


def _call_evidence(evidence: Evidence, calls: DriverAllocations, exposed_ns: int) -> tuple[str, ...]:
    sentences = [
        f"cudaMalloc ({calls.mallocs} {per_step(evidence)}) and cudaFree ({calls.frees}) block the host for "
        f"{duration(calls.blocked_ns)}; the GPU is idle for {duration_in_step(evidence, exposed_ns)} meanwhile.",
    ]
    if calls.retries:
        sentences.append(f"The GPU was full {count(calls.retries, 'time')}; PyTorch emptied its cache and retried.")
    elif calls.retries == 0:
        sentences.append("The GPU was never full, so PyTorch had no reason to free memory.")
    return tuple(sentences)


def fragmentation(evidence: Evidence) -> Finding | Unjudged | None:
    """The GPU is nearly full, and much of its reserved memory is fragmented and unusable.

    Proof: peak reserved memory exceeds peak allocated memory by 25 %, `inactive_split_bytes` is at least 20 % of
    reserved memory, and the GPU is over 80 % full.

    Confused with: a large cache after a peak while other memory is free, which is harmless; memory of other processes.

    What to do: set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, so that segments grow in place, and use batches
    of one shape.
    """
    for memory in gpu_memory(evidence.run, evidence.steps):
        if memory.used_frac is None:
            return _UNKNOWN_CAPACITY
        fragmented_frac = memory.never_allocated_bytes / max(1, memory.reserved_bytes)
        is_split = (memory.fragmented_frac or 0.0) >= _MIN_FRAGMENTED_FRAC
        if fragmented_frac >= _MIN_FRAGMENTED_FRAC and is_split and memory.used_frac >= _NEARLY_FULL_FRAC:
            return _fragmentation_finding(memory)
    return None


def _fragmentation_finding(memory: AllocatorUse) -> Finding:
    retried = bool(memory.retries or memory.out_of_memory_errors)
    share = percent(memory.never_allocated_bytes / memory.reserved_bytes)
    sentences = [
        f"PyTorch reserves up to {size(memory.reserved_bytes)} on GPU {memory.device} and allocates at most "
        f"{size(memory.allocated_bytes)} of it; the GPU is {percent(memory.used_frac)} full.",
        f"Free fragments inside blocks in use: {percent(memory.fragmented_frac)} of reserved memory in a typical step.",
    ]
    if memory.retries:
        sentences.append(f"PyTorch emptied its cache {count(memory.retries, 'time')} because an allocation failed.")
    return Finding(
        claim=f"GPU memory is fragmented: {size(memory.never_allocated_bytes)} ({share} of reserved memory) is "
        "unusable, "
        "and the GPU is nearly full.",
        evidence=tuple(sentences),
        numbers=known_numbers(
            stranded_bytes=memory.never_allocated_bytes,
            reserved_bytes=memory.reserved_bytes,
            split_frac=memory.fragmented_frac or 0.0,
            used_frac=memory.used_frac or 0.0,
        ),
        fix=_expandable(),
        advice="Batches of one shape (pad or bucket them) cause less fragmentation. To see every block, call "
        "torch.cuda.memory._record_memory_history() before the loop and torch.cuda.memory._dump_snapshot() after it.",
        confidence=LIKELY if retried else SUSPECT,
        confidence_reason="" if retried else "no allocation has failed because of it yet",
        from_steps=False,
        caveats=("The fix frees memory for a larger batch; it does not save time.",),
    )


def _expandable() -> str:
    return (
        "import os   # before importing torch, so in the first cell after a kernel restart\n"
        f'os.environ["{ALLOCATOR_SETTING}"] = "expandable_segments:True"'
    )


def memory_growth(evidence: Evidence) -> Finding | Unjudged | None:
    """Memory grows from step to step: a leak, usually tensors that are kept with their autograd graphs.

    Proof: allocated GPU memory at the start of each step, or the resident memory of the process, rises steadily over at
    least 20 steps (Theil-Sen slope, 95 % interval above zero), and still rises in the second half. Or a list grew whose
    entries' autograd graphs were counted: after an earlier run, the process has free memory to reuse, and its size does
    not show the leak.

    Confused with: optimizer state, created in the first steps; caches and workers, which level off; growing inputs,
    where the peak rises by more than the memory between steps, or the steps get longer.

    What to do: keep numbers instead of losses: `loss.item()`. `loss.detach()` may not suffice: the result of
    `mse_loss`, one number, holds a buffer of the size of its inputs. Run code that needs no gradients under
    `torch.no_grad()`. On a CPU, a list of detached losses can also make the memory of the process grow: each small
    tensor stays between freed activations, whose memory is then not used again (0.4 MiB per step in one measured loop,
    glibc 2.36).
    """
    trends, lists = memory_growths(evidence.run, evidence.steps), growing_lists(evidence.run)
    growth = max(trends, key=lambda trend: trend.last_bytes - trend.first_bytes, default=None)
    if growth is None or not _grows(growth):
        if lists and (lists[0].bytes or 0) >= _MIN_GROWTH_BYTES:
            return _list_finding(lists[0], is_hidden=growth is not None)
        return None if growth else _TOO_FEW_STEPS
    if not lists and (reason := _inputs_grow(growth)) is not None:
        return Unjudged(reason=reason, fix=_SAME_INPUT_SIZE)
    steps_left = growth.steps_left
    soon_full = steps_left is not None and steps_left < _URGENT_RUNS * len(evidence.steps)
    urgent = bool(lists) or soon_full  # a list of graphs grows as long as the loop runs
    is_uncertain = growth.device is None and not lists
    outlook = "" if steps_left is None else f", which is full after about another {_rounded_steps(steps_left)}"
    memory = "host memory" if growth.device is None else f"GPU {growth.device}'s memory"
    holder = f": {lists[0].name} keeps {_CONTENT[lists[0].kind]}s" if lists else ""
    return Finding(
        claim=f"{'Memory leak' if lists else 'Memory grows'}: each step keeps another {size(growth.per_step.slope)} "
        f"of {memory}{outlook}{holder}.",
        evidence=(*_trend_evidence(growth), *map(_list_growth, lists[:3])),
        numbers=known_numbers(
            per_step_bytes=growth.per_step.slope,
            low_bytes=growth.per_step.low,
            high_bytes=growth.per_step.high,
            steps_left=steps_left,
        ),
        fix=_append_number_code(lists[0].name) if lists else _LIST_TENSORS_CODE,
        advice=_HEAP_ADVICE if is_uncertain else _ADVICE[lists[0].kind] if lists else _LEAK_ADVICE,
        confidence=CERTAIN if lists else SUSPECT if is_uncertain else LIKELY,
        confidence_reason=_HEAP_GROWS if is_uncertain else "",
        from_steps=False,
        urgent=urgent,
        informs_only=is_uncertain and not urgent,
    )


def _list_finding(growing_list: GrowingList, *, is_hidden: bool) -> Finding:
    """Return the finding for a list that grows; `is_hidden`: within memory that the process has already reserved."""
    hidden = "The process has not grown yet: it reuses memory that was freed before, perhaps by an earlier run."
    return Finding(
        claim=f"Memory leak: {growing_list.name} keeps {_ONE_CONTENT[growing_list.kind]} per entry: "
        f"{size(growing_list.bytes_per_entry)} each, {size(growing_list.bytes)} so far.",
        evidence=(_list_growth(growing_list), *((hidden,) if is_hidden else ())),
        numbers=known_numbers(kept_bytes=growing_list.bytes or 0, entries=growing_list.entries),
        fix=_append_number_code(growing_list.name),
        advice=_ADVICE[growing_list.kind],
        confidence=CERTAIN,
        from_steps=False,
        urgent=True,
    )


def _list_growth(growing_list: GrowingList) -> str:
    size_text = "" if growing_list.bytes is None else f", which keep {size(growing_list.bytes)}"
    return (
        f"{growing_list.name} grew by {growing_list.entries:,} entries with {_CONTENT[growing_list.kind]}s{size_text}."
    )


_TOO_FEW_STEPS = Unjudged(
    reason=f"the check needs the memory in use during at least {MIN_GROWTH_STEPS} steps after the traced ones",
    fix="let the loop run for some more seconds under %%gpuprofile",
)
_CONTENT = {"graph": "autograd graph", "buffer": "large buffer"}
_ONE_CONTENT = {"graph": "an autograd graph", "buffer": "a large buffer"}
_GRAPH_ADVICE = (
    "A stored loss keeps its autograd graph with all activations. Use total += loss.detach() or "
    "losses.append(loss.item()) instead."
)
_BUFFER_ADVICE = (
    "A detached loss may hold a buffer of the size of the inputs: mse_loss, smooth_l1_loss and soft_margin_loss "
    "compute the mean in place. loss.detach().clone() holds one number, too, and does not wait for the GPU."
)
_LEAK_ADVICE = f"{_GRAPH_ADVICE} {_BUFFER_ADVICE}"
_ADVICE = {"graph": _GRAPH_ADVICE, "buffer": _BUFFER_ADVICE}
_HEAP_ADVICE = (
    f"{_LEAK_ADVICE} On a CPU, detached losses in a list can also fragment the memory of the process: keep loss.item()."
)
_HEAP_GROWS = "the heap of a process grows for a while, and no list was found that grows"
_SAME_INPUT_SIZE = "profile again with inputs of one size: memory that still grows is a leak"
_LIST_TENSORS_CODE = (
    "import gc, torch   # run this twice, between steps: compare the two lists\n"
    "tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]\n"
    "buffers = {t.untyped_storage().data_ptr(): (t.untyped_storage().nbytes(), tuple(t.shape)) for t in tensors}\n"
    "print(len(tensors), sorted(buffers.values(), reverse=True)[:10])   # bytes, shape of a tensor in them"
)


def _grows(growth: Growth) -> bool:
    """Whether memory grows steadily, to the end, and by an amount that matters."""
    slope, second_half = growth.per_step, growth.second_half
    growth_bytes = slope.slope * growth.steps
    if not slope.rises or growth_bytes < max(_MIN_GROWTH_BYTES, _MIN_GROWTH_FRAC * growth.first_bytes):
        return False
    return second_half is not None and second_half.rises and second_half.slope >= slope.slope / 2


def _inputs_grow(growth: Growth) -> str | None:
    """Return why the growth may come from growing inputs rather than a leak; None if not."""
    peak, time = growth.peak, growth.step_time
    if peak is not None and peak.rises and peak.slope > _PEAK_SLOPE_RATIO * growth.per_step.slope:
        return (
            f"peak memory grows by {size(peak.slope)} per step and memory between steps by "
            f"{size(growth.per_step.slope)}: the inputs seem to grow"
        )
    if growth.device is None and time is not None and time.rises:
        lengthening_frac = time.slope * growth.steps / max(1, growth.step_ns)
        if lengthening_frac > _LONGER_STEP_FRAC:
            return (
                f"memory grows, but steps also get longer ({percent(lengthening_frac)} over the run): the inputs "
                "seem to grow"
            )
    return None


def _trend_evidence(growth: Growth) -> tuple[str, ...]:
    slope = growth.per_step
    sentences = [
        f"From {size(growth.first_bytes)} to {size(growth.last_bytes)} over {growth.steps} steps; "
        f"{size(slope.low)} to {size(slope.high)} per step (95 % interval of {slope.points} readings).",
    ]
    if growth.second_half is not None:
        sentences.append(f"In the second half it still grows, by {size(growth.second_half.slope)} per step.")
    if growth.free_bytes is not None:
        sentences.append(f"{size(growth.free_bytes)} is still free.")
    return tuple(sentences)


def _rounded_steps(steps: float) -> str:
    """Return the number of steps with two significant digits, as it is a projection."""
    return count(int(float(f"{steps:.2g}")), "step")


def _append_number_code(name: str) -> str:
    """Return code for the list of this name; "" if the name describes memory that no variable holds."""
    if not is_variable(name):
        return ""
    return f"{name}.append(loss.item())   # a number; the tensor would keep more than that"


def unused_gpu_memory(evidence: Evidence) -> Finding | Unjudged | None:
    """Most of the GPU's memory is free: a larger batch fits.

    Proof: at its peak, all processes together use less than half of it.

    Confused with: a GPU that waits for data or for the host, which a larger batch does not help; those findings replace
    this one. A GPU whose kernels already fill it gains little.

    What to do: double the batch as long as samples per second rise, and scale the learning rate with it.
    """
    failure = evidence.run.failure
    if failure is not None and failure.device is not None:  # the memory of a GPU ran out
        return None
    for memory in gpu_memory(evidence.run, evidence.steps):
        if memory.used_frac is None:
            return _UNKNOWN_CAPACITY
        if memory.used_frac < _MAX_USED_FRAC:
            return _unused_finding(evidence, memory)
    return None


def _unused_finding(evidence: Evidence, memory: AllocatorUse) -> Finding:
    used_bytes, capacity = memory.used_bytes, memory.capacity_bytes or 1
    batch = next((loader.batch_size for loader in evidence.run.loaders if loader.batch_size), None)
    sizes = f" from {batch} to {2 * batch}" if batch else ""
    unused, context = 1 - used_bytes / capacity, ""
    if evidence.run.source.how == "virtual" and (spec := spec_of(evidence.run.machine.gpus[memory.device])):
        unused -= spec.context_bytes / capacity  # a virtual GPU has no sensor that would count it
        context = f", plus about {size(spec.context_bytes)} of CUDA context"
    share = percent(unused) if unused < _NEARLY_ALL_FRAC else f"> {percent(_NEARLY_ALL_FRAC, 1)}"
    return Finding(
        claim=f"{share} of the memory of GPU {memory.device} is never used.",
        evidence=(f"At the peak, all processes together use {size(used_bytes)} of {size(capacity)}{context}.",),
        numbers=known_numbers(used_bytes=used_bytes, capacity_bytes=capacity, used_frac=used_bytes / capacity),
        advice=f"Double the batch size{sizes} and check whether samples per second rise: they do if the kernels are "
        "too small for the GPU. If you keep the larger batch, tune the learning rate again.",
        confidence=LIKELY,
        confidence_reason="free memory alone is not a fault",
        from_steps=False,
        informs_only=True,
    )
