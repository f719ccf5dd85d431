"""Rules about the way to the device: memory that cannot be copied from directly, and copies that compute waits for."""

from __future__ import annotations

from gpulab.analysis.copies.cpu_tensors import Built
from gpulab.analysis.copies.cpu_tensors import cpu_tensor_creation as built_tensors
from gpulab.analysis.copies.host_to_device import Copies, transfers
from gpulab.analysis.host.syncs import FILLING
from gpulab.analysis.machine.link import practical_bytes_per_s
from gpulab.rules.data.loader_code import rebuilt
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, figures
from gpulab.rules.engine.phrases import duration_in_step, of_each_step
from gpulab.run import Loader
from gpulab.wording import count, duration, metric, percent, size

PAGEABLE_WORTH_FRAC = 0.02  # pinning is one argument; what copies under a fiftieth of a step cost, nobody notices
IN_TURN_WORTH_FRAC = 0.05  # a stream of its own is a dozen lines: as for the loader, a twentieth
BUILT_WORTH_FRAC = 0.03
LEAST_SAVED = 0.3  # what is sure to go: the calls no longer hold the host, though the link may be no faster
PINNED_BYTES_PER_S = 25e9  # PCIe 4 x16, where the link is not known


def pageable_copies(evidence: Evidence) -> Finding | None:
    """Batches are copied to the GPU from ordinary memory, which the driver must first copy to memory of its own.

    Proof: `Memcpy HtoD (Pageable -> Device)` with no kernel beside it, the main thread held inside the call, and the
    GPU idle afterwards until new work arrives, as the call also waits for all earlier work. Confused with: copies
    that take turns with compute though they are pinned (`unoverlapped_copies`); tensors built on the CPU
    (`cpu_tensor_creation`); a call that is long because the GPU works meanwhile, which is no loss and is not counted.
    What to do: pin_memory and non_blocking; either alone changes little.
    """
    found = evidence.once(transfers)
    copies = found.pageable if found else None
    if copies is None:
        return None
    cost_ns = copies.exposed_ns + copies.refill_ns
    share = evidence.step_share(cost_ns)
    if share < PAGEABLE_WORTH_FRAC:
        return None
    return Finding(
        parts=("copies", "copy_call"),
        claim=f"The GPU computes nothing {percent(share)} {of_each_step(evidence)} "
        "while batches are copied to it from memory that is not pinned.",
        evidence=(
            f"{_how_many(copies)}, all from pageable memory; they hold the main thread for {duration(copies.call_ns)}.",
            f"{duration_in_step(evidence, copies.exposed_ns)} in copies and their calls with no kernel beside them"
            + (f", and {duration(copies.refill_ns)} until new work arrived." if copies.refill_ns else "."),
        ),
        numbers=_numbers(copies, cost_ns, share),
        fix=_pinned(evidence),
        advice=_pin_advice(evidence),
        gain=_pinning_gain(evidence, copies, cost_ns),
        rewrites=evidence.typed("pin_memory"),
        confidence=CERTAIN,
        shown_by=copies.spans,
        caveats=("Pinned memory cannot be swapped out: where host memory is short, keep batches small.",),
    )


def unoverlapped_copies(evidence: Evidence) -> Finding | None:
    """Batches are copied from pinned memory, but compute waits for each copy, as both use one stream.

    Proof: `Memcpy HtoD (Pinned -> Device)` in each step with no kernel beside it. Confused with: pageable memory
    (`pageable_copies`), where pinning comes first; a slow link (`slow_pcie_link`), which makes any copy long; and
    copies that kernels hide. What to do: copy the next batch on a stream of its own while this one computes.
    """
    found = evidence.once(transfers)
    copies = found.pinned if found else None
    if copies is None:
        return None
    working_ns = evidence.ledger.median_ns("matmul", "kernels")
    hidable_ns = min(copies.exposed_ns, working_ns)  # a copy hides behind kernels: no more than there are
    share = evidence.step_share(hidable_ns)
    if share < IN_TURN_WORTH_FRAC:
        return None
    return Finding(
        parts=("copies", "copy_call"),
        claim=f"Copies of batches and computing take turns: the GPU computes nothing {percent(share)} "
        f"{of_each_step(evidence)} while it is copied to.",
        evidence=(
            f"{_how_many(copies)}, all from pinned memory, as they should be.",
            f"{duration_in_step(evidence, copies.exposed_ns)} of copying with no kernel beside it: "
            f"{percent(1 - copies.hidden_frac)} of all copying.",
        ),
        numbers=_numbers(copies, hidable_ns, share),
        fix=_prefetched(evidence),
        gain=evidence.predicted(
            "prefetch",
            evidence.bounded(
                evidence.plain_ns(hidable_ns),
                "the copies, hidden behind the kernels by 30 to 100 %",
                "even copying that is hidden wholly",
                (0.3, 1.0),
                copies.spans,
            ),
        ),
        rewrites=evidence.typed("prefetch"),
        confidence=CERTAIN,
        shown_by=copies.spans,
        caveats=("The copies made ahead need memory on the GPU for one more batch.",),
    )


def cpu_tensor_creation(evidence: Evidence) -> Finding | None:
    """The loop fills tensors on the CPU (noise, zeros, masks) and copies them to the GPU, which could fill them itself.

    Proof: an operator that fills a tensor (randn, zeros, full) with no kernel, followed by a copy to the GPU of as
    many elements, and the device idle meanwhile. Confused with: batches of a DataLoader, whose making lies inside
    the loader and is not counted; tensors of a few numbers. What to do: device="cuda" where the tensor is made.
    """
    if evidence.ledger.share(*FILLING, "copies") < BUILT_WORTH_FRAC:
        return None
    built = evidence.once(built_tensors)
    if built is None:
        return None
    share = evidence.step_share(built.exposed_ns)
    if share < BUILT_WORTH_FRAC:
        return None
    return Finding(
        parts=("copies", "copy_call"),
        claim=f"The GPU computes nothing {percent(share)} {of_each_step(evidence)} while the CPU fills tensors (torch."
        f"{built.call}) that are then copied to it.",
        evidence=(
            f"{count(built.count, 'tensor')} in each step{_of_size(built.bytes)}: "
            f"{duration(built.filling_ns)} to fill on the CPU, then a copy.",
            f"{duration_in_step(evidence, built.exposed_ns)} of it with nothing else on the GPU.",
        ),
        numbers=figures(
            exposed_frac=share, exposed_ns=built.exposed_ns, filling_ns=built.filling_ns, per_step=built.count
        ),
        fix=_made_there(built),
        advice="The GPU draws other random numbers than the CPU does from the same seed.",
        gain=evidence.bounded(
            evidence.plain_ns(built.exposed_ns),
            "the filling and copying, removed by 80 to 100 %",
            "even no filling",
            (0.8, 1.0),
            built.spans,
        ),
        confidence=CERTAIN if built.shape else LIKELY,
        shown_by=built.spans,
    )


def _how_many(copies: Copies) -> str:
    several = f"{count(copies.count, 'copy', 'copies')} to the GPU in each step"
    rate = f" at {metric(copies.rate_bytes_per_s, 'B/s')}" if copies.rate_bytes_per_s else ""
    return several + _of_size(copies.bytes) + rate


def _of_size(bytes_: float | None) -> str:
    return "" if bytes_ is None else f", {size(bytes_)}"


def _numbers(copies: Copies, cost_ns: int, share: float) -> dict[str, float]:
    return figures(
        exposed_frac=share,
        exposed_ns=cost_ns,
        per_step=copies.count,
        call_ns=copies.call_ns,
        bytes=copies.bytes,
        rate_bytes_per_s=copies.rate_bytes_per_s,
    )


def _pinning_gain(evidence: Evidence, copies: Copies, cost_ns: int) -> Gain:
    """A pinned copy still takes its turn, at the pace of the link; the host is held no more."""
    quick = practical_bytes_per_s(evidence.run) or PINNED_BYTES_PER_S
    left = min(1.0, (copies.rate_bytes_per_s or quick / 2) / quick)
    saved_ns = cost_ns - left * copies.copying_ns
    best = min(1.0, max(LEAST_SAVED, saved_ns / max(1, cost_ns)))
    plain = evidence.bounded(
        evidence.plain_ns(cost_ns),
        "calls that no longer wait, and copies at the pace of pinned memory",
        "even free copying",
        (LEAST_SAVED * best, best),
        copies.spans,
    )
    return evidence.predicted("pin_memory", plain)


def _pinned(evidence: Evidence) -> str:
    setup = next(iter(evidence.run.loaders), None)
    loop = (
        "# in the loop, at each copy to the GPU; without pinned memory it changes nothing\n"
        'inputs, targets = inputs.to("cuda", non_blocking=True), targets.to("cuda", non_blocking=True)'
    )
    if setup is not None and setup.pin_memory:  # then what is copied is not what the loader gave, or not as it gave it
        return (
            "# what the loop makes of a batch is not pinned any more: pin it, then copy it\n"
            'inputs = inputs.pin_memory().to("cuda", non_blocking=True)'
        )
    if setup is None and evidence.run.source.how in ("measured", "virtual"):  # such a run knows every loader there was
        return "inputs, targets = inputs.pin_memory(), targets.pin_memory()  # once, where the data are made\n\n" + loop
    return f"{rebuilt(seen, setup or Loader(), {'pin_memory': True})}\n\n{loop}"


def _pin_advice(evidence: Evidence) -> str:
    setup = next(iter(evidence.run.loaders), None)
    if setup is not None and setup.pin_memory:
        return "The DataLoader pins already. Batches of a class of your own are pinned if it has a method pin_memory()."
    return "Do both: pinned memory is what lets a copy go on while the main thread does."


def _prefetched(evidence: Evidence) -> str:
    loader = evidence.names.loader
    return (
        'def prefetched(batches, device="cuda"):\n'
        '    """Copies the next batch on a stream of its own while this one computes."""\n'
        "    side, batches = torch.cuda.Stream(), iter(batches)\n\n"
        "    def copied():\n"
        "        with torch.cuda.stream(side):\n"
        "            batch = next(batches, None)\n"
        "            return None if batch is None else [part.to(device, non_blocking=True) for part in batch]\n\n"
        "    following = copied()\n"
        "    while following is not None:\n"
        "        torch.cuda.current_stream().wait_stream(side)\n"
        "        for part in following:\n"
        "            part.record_stream(torch.cuda.current_stream())\n"
        "        batch, following = following, copied()\n"
        "        yield batch\n\n\n"
        f"ahead = prefetched({loader})  # in each epoch; then: for inputs, targets in ahead"
    )


def _made_there(built: Built) -> str:
    size = tuple(built.shape) if built.shape is not None else (64, 1024)
    calls = {
        "randint": f'torch.randint(0, 256, {size}, device="cuda")',
        "full": f'torch.full({size}, 1.0, device="cuda")',
        "bernoulli": f'torch.empty({size}, device="cuda").bernoulli_(0.5)',
        "exponential": f'torch.empty({size}, device="cuda").exponential_()',
    }
    call = calls.get(built.call, f'torch.{built.call}({size}, device="cuda")')
    return f"made = {call}  # filled where it is used: nothing to copy"
