"""Rules about the way to the device and the device itself: copies, waits, and a device that is simply busy."""

from __future__ import annotations

from gpulab.analysis.copies import host_to_device
from gpulab.analysis.syncs import host_waits
from gpulab.rules.evidence import Evidence
from gpulab.rules.finding import CERTAIN, LIKELY, Finding
from gpulab.rules.phrases import ms, of_a_step, of_each_step, percent, spread

COPY_WORTH_FRAC = 0.03  # pinning is one argument: worth telling a little earlier than a rewrite
SYNC_WORTH_FRAC = 0.03
WORKING = ("matmul", "kernels", "communication", "compute")
TALKING_FRAC = 0.05  # less communication than this is not worth a word
BUSY_FRAC = 0.85  # busier than this, feeding and calling are not the limit


def exposed_copies(seen: Evidence) -> Finding | None:
    """Batches are copied to the GPU while it computes nothing.

    Proof: `Memcpy HtoD (Pageable -> Device)` with no kernel beside it, and the host held inside the call; a pinned
    copy that is exposed only takes turns with compute. Confused with: a copy call that is long because it waits for
    earlier GPU work, which is not idle time and is not counted. What to do: pin_memory and non_blocking.
    """
    copies = host_to_device(seen.run, seen.steps)
    if copies is None:
        return None
    share = seen.ledger.share("copies", "copy_call")
    if share < COPY_WORTH_FRAC:
        return None
    exposed_ns = seen.ledger.median_ns("copies", "copy_call")
    pageable = copies.pageable > 0
    confidence, why = seen.confidence(CERTAIN if pageable else LIKELY)
    kind = "pageable memory" if pageable else "pinned memory, in turn with compute"
    return Finding(
        rule="exposed_copies",
        parts=("copies", "copy_call"),
        claim=f"The GPU computes nothing {percent(share)} {of_each_step(seen)} while batches are copied from {kind}.",
        evidence=(
            f"{of_a_step(seen, exposed_ns)} in copies and copy calls with no kernel "
            f"beside them ({spread(seen, 'copies', 'copy_call')}).",
            f"{copies.count} copies to the GPU per step, {copies.pageable} of them from pageable memory"
            + (f"; {copies.bytes / 1e6:.3g} MB" if copies.bytes is not None else "")
            + (f" at {copies.rate_bytes_per_s / 1e9:.3g} GB/s." if copies.rate_bytes_per_s else "."),
        ),
        numbers={"exposed_frac": share, "exposed_ns": float(exposed_ns), "pageable": float(copies.pageable)},
        fix=_pinned() if pageable else _prefetched(),
        gain=seen.bounded(
            seen.plain_ns(exposed_ns), "the exposed copies, hidden by 30 to 100 %", "even free copying", (0.3, 1.0)
        ),
        confidence=confidence,
        why_confidence=why,
        shown_by=copies.spans,
        lesson="07_host_to_device",
    )


def host_syncs(seen: Evidence) -> Finding | None:
    """The loop asks the GPU for a value, waits for it, and the GPU then waits for new work.

    Proof: `aten::item`, `aten::nonzero` and their like that hold a synchronising call, followed by device idle time.
    The wait itself is no loss: the GPU works meanwhile. Only the idle time after it counts. Confused with: copies of
    batches, and the profiler's own synchronisation at its edges. What to do: keep values on the GPU, log every N.
    """
    waits = host_waits(seen.run, seen.steps)
    if waits is None or waits.idle_after_ns < SYNC_WORTH_FRAC * int(seen.steps.traced_ns or 0):
        return None
    share = waits.idle_after_ns / (seen.steps.traced_ns or 1)
    confidence, why = seen.confidence(LIKELY)
    named = ", ".join(f"{count} x {name}" for name, count in waits.by_op[:3])
    return Finding(
        rule="host_syncs",
        parts=("sync",),
        claim=f"GPU idle {percent(share)} {of_each_step(seen)} after the host waited for a value ({named}).",
        evidence=(
            f"{waits.count} waits per step hold the host for {ms(waits.blocked_ns)}; in the {ms(waits.idle_after_ns)} "
            f"that follow them the GPU has nothing to do.",
        ),
        numbers={"exposed_frac": share, "exposed_ns": float(waits.idle_after_ns), "per_step": float(waits.count)},
        fix="loss_sum += loss.detach()          # stays on the GPU\n"
        "if step % 50 == 0:\n    print(loss_sum.item() / 50)    # one wait in fifty steps",
        advice='torch.cuda.set_sync_debug_mode("warn") names every line that waits.',
        gain=seen.bounded(
            seen.plain_ns(waits.idle_after_ns),
            "the idle time after the waits, removed by 30 to 100 %",
            "even no waiting",
            (0.3, 1.0),
        ),
        confidence=confidence,
        why_confidence=why,
        shown_by=waits.spans,
        lesson="12_launch_fusion_graphs",
    )


def device_bound(seen: Evidence) -> Finding | None:
    """The device works nearly all the time: nothing is wrong with feeding it.

    It informs and predicts nothing: only faster work (precision, fusion, a better algorithm) makes this shorter.
    Proof: kernels and collectives cover the step. Confused with: a GPU that is busy copying what nothing hides, which
    is not counted here. What of it is communication that no kernel hides is said, as that is not compute.
    """
    busy, talking = seen.ledger.share(*WORKING), seen.ledger.share("communication")
    if busy < BUSY_FRAC:
        return None
    device = "GPU" if seen.on_gpu else "CPU"
    confidence, why = seen.confidence(CERTAIN)
    what = f"The {device} computes {percent(busy)} {of_each_step(seen)}"
    if talking >= TALKING_FRAC:
        what = f"The {device} works {percent(busy)} {of_each_step(seen)} ({percent(talking)} is exposed communication)"
    return Finding(
        rule="device_bound",
        claim=f"{what}: feeding it is not the limit.",
        evidence=(f"{spread(seen, *WORKING)} of work.",),
        numbers={"busy_frac": busy, "communication_frac": talking},
        advice=_faster_compute(seen.on_gpu),
        confidence=confidence,
        why_confidence=why,
    )


def _faster_compute(on_gpu: bool) -> str:
    if on_gpu:
        return "To make it faster: bfloat16 autocast, TF32, torch.compile, channels_last; then a larger GPU."
    return "To make it faster: bfloat16 where this CPU has it, torch.compile, a smaller model; or a GPU."


def _pinned() -> str:
    return (
        "loader = DataLoader(..., pin_memory=True)\n"
        "batch = batch.to(device, non_blocking=True)   # both are needed: neither helps alone"
    )


def _prefetched() -> str:
    return (
        "side = torch.cuda.Stream()\n"
        "with torch.cuda.stream(side):                 # copy the next batch while this one computes\n"
        "    following = next(batches).to(device, non_blocking=True)\n"
        "torch.cuda.current_stream().wait_stream(side)\n"
        "following.record_stream(torch.cuda.current_stream())"
    )
