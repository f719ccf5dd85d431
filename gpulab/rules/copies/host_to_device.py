"""Rules about host-to-device copies: pageable memory, missing overlap with compute, tensors created on the CPU."""

from __future__ import annotations

from gpulab.analysis.copies.cpu_tensors import CpuTensors
from gpulab.analysis.copies.cpu_tensors import find_cpu_filled_tensors as built_tensors
from gpulab.analysis.copies.host_to_device import CopyStats, transfers
from gpulab.analysis.host.syncs import REFILL_PARTS
from gpulab.analysis.machine.link import best_link_bytes_per_s
from gpulab.rules.data.loader_code import change_loader
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import no_kernel_share, sentences, step_spends
from gpulab.run_facts import is_from_gpulab
from gpulab.wording import count, duration, metric, percent, size

_MIN_PAGEABLE_FRAC = 0.02  # pinning is one argument, but less than 2 % of a step is not noticeable
_MIN_UNOVERLAPPED_FRAC = 0.05  # a separate copy stream takes a dozen lines: 5 %, as for data loading
_MIN_CREATION_FRAC = 0.03
_LEAST_SAVED_FRAC = 0.3  # certain to go: the calls no longer block the host, even if the link is no faster
_PINNED_BYTES_PER_S = 25e9  # PCIe 4 x16, if the link is unknown


def pageable_copies(evidence: Evidence) -> Finding | None:
    """Batches are copied to the GPU from pageable memory: the driver copies them to a pinned buffer first.

    Proof: `Memcpy HtoD (Pageable -> Device)` with no concurrent kernel, the main thread blocked inside the call, and
    the GPU idle afterwards until new work arrives, because the call also waits for all earlier work.

    Confused with: pinned copies that do not overlap with compute (`unoverlapped_copies`); tensors created on the CPU
    (`cpu_tensor_creation`); a call that is long because the GPU is still busy, which costs nothing and is not counted.

    What to do: use pin_memory=True and non_blocking=True together; either one alone changes little.
    """
    copies_of_run = evidence.cached(transfers)
    copies = copies_of_run.pageable if copies_of_run else None
    if copies is None:
        return None
    cost_ns = copies.exposed_ns + copies.refill_ns
    share = evidence.step_share(cost_ns)
    if share < _MIN_PAGEABLE_FRAC:
        return None
    return Finding(
        ledger_parts=("copies", *REFILL_PARTS) if copies.refill_ns else ("copies", "copy_call"),
        claim=f"{no_kernel_share(evidence, share, 'copying batches from pageable (not pinned) memory')}.",
        evidence=(
            f"{_copy_count(copies)}, all from pageable memory; the calls block for {duration(copies.call_ns)}.",
            f"{step_spends(evidence, evidence.unprofiled_ns(copies.exposed_ns))} "
            "in copies and copy calls with no concurrent kernel"
            + (f", and {duration(copies.refill_ns)} idle until new work arrives." if copies.refill_ns else "."),
        ),
        numbers=_numbers(copies, cost_ns, share),
        fix=_pinned(evidence),
        advice=_pin_advice(evidence),
        gain=_pinning_gain(evidence, copies, cost_ns),
        rewrites=evidence.applicable_rewrites("pin_memory"),
        confidence=CERTAIN,
        spans=copies.spans,
        caveats=("Pinned memory cannot be swapped out: if host memory is short, keep batches small.",),
    )


def unoverlapped_copies(evidence: Evidence) -> Finding | None:
    """Batches are copied from pinned memory, but the copies do not overlap with compute, as both use one stream.

    Proof: `Memcpy HtoD (Pinned -> Device)` in each step with no concurrent kernel.

    Confused with: pageable memory (`pageable_copies`), where pinning comes first; a slow link (`slow_pcie_link`), which
    lengthens every copy; copies that kernels already overlap.

    What to do: prefetch the next batch on a separate stream while the current one computes.
    """
    copies_of_run = evidence.cached(transfers)
    copies = copies_of_run.pinned if copies_of_run else None
    if copies is None:
        return None
    kernel_ns = evidence.ledger.median_ns("matmul", "kernels")
    overlappable_ns = min(copies.exposed_ns, kernel_ns)  # copies can overlap with kernels only
    share = evidence.step_share(overlappable_ns)
    if share < _MIN_UNOVERLAPPED_FRAC:
        return None
    return Finding(
        ledger_parts=("copies", "copy_call"),
        claim=f"{no_kernel_share(evidence, share, 'copying batches without overlap')}.",
        evidence=(
            f"{_copy_count(copies)}, all from pinned memory, which is right.",
            f"{step_spends(evidence, evidence.unprofiled_ns(copies.exposed_ns))} in copies with no concurrent kernel, "
            f"{percent(1 - copies.hidden_frac)} of all copy time.",
        ),
        numbers=_numbers(copies, overlappable_ns, share),
        fix=_prefetched(evidence),
        gain=evidence.gain_of_named_rewrites(
            "prefetch",
            evidence.gain_of_removing(
                evidence.unprofiled_ns(overlappable_ns),
                "overlapping 30 to 100 % of the copies with kernels",
                "complete overlap of the copies",
                (0.3, 1.0),
                copies.spans,
            ),
        ),
        rewrites=evidence.applicable_rewrites("prefetch"),
        confidence=CERTAIN,
        spans=copies.spans,
        caveats=("Prefetching needs GPU memory for one more batch.",),
    )


def cpu_tensor_creation(evidence: Evidence) -> Finding | None:
    """The loop creates tensors on the CPU (noise, zeros, masks) and copies them to the GPU, which could create them.

    Proof: an operator that fills a tensor (randn, zeros, full) without a kernel, followed by a copy of as many elements
    to the GPU, with the device idle meanwhile.

    Confused with: batches of a DataLoader, which are created inside the loader and not counted; tensors of a few
    numbers.

    What to do: pass device="cuda" to the function that creates the tensor.
    """
    if evidence.ledger.typical_frac(*REFILL_PARTS, "copies") < _MIN_CREATION_FRAC:
        return None
    creation = evidence.cached(built_tensors)
    if creation is None:
        return None
    share = evidence.step_share(creation.exposed_ns)
    if share < _MIN_CREATION_FRAC:
        return None
    return Finding(
        ledger_parts=("copies", "copy_call", "dispatch", "glue", "python"),  # filling a tensor is an operator
        claim=f"{no_kernel_share(evidence, share, f'creating tensors on the CPU (torch.{creation.call})')}.",
        evidence=(
            f"{count(creation.count, 'tensor')} in each step{_size_suffix(creation.bytes)}: "
            f"{duration(evidence.unprofiled_ns(creation.filling_ns))} to fill on the CPU, then a copy to the GPU.",
            f"{step_spends(evidence, evidence.unprofiled_ns(creation.exposed_ns))} "
            "on this while nothing else runs on the GPU.",
        ),
        numbers=known_numbers(
            exposed_frac=share, exposed_ns=creation.exposed_ns, filling_ns=creation.filling_ns, per_step=creation.count
        ),
        fix=_created_on_gpu(creation),
        advice="The GPU draws different random numbers than the CPU from the same seed.",
        gain=evidence.gain_of_removing(
            evidence.unprofiled_ns(creation.exposed_ns),
            "removing 80 to 100 % of the time to fill and copy these tensors",
            "creation of these tensors at no cost",
            (0.8, 1.0),
            creation.spans,
        ),
        confidence=CERTAIN if creation.shape else LIKELY,
        spans=creation.spans,
    )


def _copy_count(copies: CopyStats) -> str:
    copies_per_step = f"{count(copies.count, 'copy', 'copies')} to the GPU in each step"
    rate = f" at {metric(copies.rate_bytes_per_s, 'B/s')}" if copies.rate_bytes_per_s else ""
    return copies_per_step + _size_suffix(copies.bytes) + rate


def _size_suffix(bytes_: float | None) -> str:
    return "" if bytes_ is None else f", {size(bytes_)}"


def _numbers(copies: CopyStats, cost_ns: int, share: float) -> dict[str, float]:
    return known_numbers(
        exposed_frac=share,
        exposed_ns=cost_ns,
        per_step=copies.count,
        call_ns=copies.call_ns,
        bytes=copies.bytes,
        rate_bytes_per_s=copies.rate_bytes_per_s,
    )


def _pinning_gain(evidence: Evidence, copies: CopyStats, cost_ns: int) -> Gain:
    """Return the gain of pinning: a pinned copy still takes time on the link, but no longer blocks the host."""
    pinned_bytes_per_s = best_link_bytes_per_s(evidence.run) or _PINNED_BYTES_PER_S
    time_ratio = min(1.0, (copies.rate_bytes_per_s or pinned_bytes_per_s / 2) / pinned_bytes_per_s)
    saved_ns = cost_ns - time_ratio * copies.copying_ns
    best = min(1.0, max(_LEAST_SAVED_FRAC, saved_ns / max(1, cost_ns)))
    gain = evidence.gain_of_removing(
        evidence.unprofiled_ns(cost_ns),
        "copy calls that do not block, and copies at the speed of pinned memory",
        "copies at no cost",
        (_LEAST_SAVED_FRAC * best, best),
        copies.spans,
    )
    return evidence.gain_of_named_rewrites("pin_memory", gain)


def _pinned(evidence: Evidence) -> str:
    setup = next(iter(evidence.run.loaders), None)
    loop = (
        "# in the loop, at each copy to the GPU; it has no effect without pinned memory\n"
        'inputs, targets = inputs.to("cuda", non_blocking=True), targets.to("cuda", non_blocking=True)'
    )
    if setup is not None and setup.pin_memory:  # then the loop copies other tensors than the loader returned
        return (
            "# tensors derived from a pinned batch are not pinned: pin them before the copy\n"
            'inputs = inputs.pin_memory().to("cuda", non_blocking=True)'
        )
    if setup is None and is_from_gpulab(evidence.run):
        return (
            "inputs, targets = inputs.pin_memory(), targets.pin_memory()  # once, where the data is created\n\n" + loop
        )
    code = change_loader(evidence, setup, {"pin_memory": True}).code
    return f"{code}\n\n{loop}" if code else loop


def _pin_advice(evidence: Evidence) -> str:
    setup = next(iter(evidence.run.loaders), None)
    if setup is not None and setup.pin_memory:
        return "The DataLoader already pins memory. Batches of a custom class need a pin_memory() method."
    return sentences(
        change_loader(evidence, setup, {"pin_memory": True}).advice,
        "Do both: only copies from pinned memory are asynchronous.",
    )


def _prefetched(evidence: Evidence) -> str:
    loader = evidence.names.loader
    return (
        'def prefetch(batches, device="cuda"):\n'
        '    """Copies the next batch on a separate stream while the current one computes."""\n'
        "    copy_stream, batches = torch.cuda.Stream(), iter(batches)\n\n"
        "    def copy_next():\n"
        "        with torch.cuda.stream(copy_stream):\n"
        "            batch = next(batches, None)\n"
        "            return None if batch is None else [tensor.to(device, non_blocking=True) for tensor in batch]\n\n"
        "    next_batch = copy_next()\n"
        "    while next_batch is not None:\n"
        "        torch.cuda.current_stream().wait_stream(copy_stream)\n"
        "        for tensor in next_batch:\n"
        "            tensor.record_stream(torch.cuda.current_stream())\n"
        "        batch, next_batch = next_batch, copy_next()\n"
        "        yield batch\n\n\n"
        f"prefetched = prefetch({loader})  # in each epoch; then: for inputs, targets in prefetched"
    )


def _created_on_gpu(creation: CpuTensors) -> str:
    size = tuple(creation.shape) if creation.shape is not None else (64, 1024)
    calls = {
        "randint": f'torch.randint(0, 256, {size}, device="cuda")',
        "full": f'torch.full({size}, 1.0, device="cuda")',
        "bernoulli": f'torch.empty({size}, device="cuda").bernoulli_(0.5)',
        "exponential": f'torch.empty({size}, device="cuda").exponential_()',
    }
    call = calls.get(creation.call, f'torch.{creation.call}({size}, device="cuda")')
    return f"tensor = {call}  # created on the GPU: no copy"
