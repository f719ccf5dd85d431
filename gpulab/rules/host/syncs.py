"""A rule about host-device synchronisation: the loop waits for a value, and the GPU's queue runs empty."""

from __future__ import annotations

from gpulab.analysis.host.syncs import COPY_OPS, DATA_DEPENDENT_OPS, REFILL_PARTS, VALUE_OPS, HostWaits, host_waits
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, known_numbers
from gpulab.rules.engine.phrases import duration_in_step, no_kernel_share, per_step
from gpulab.wording import count, duration, plural

_MIN_SYNC_FRAC = 0.03  # removing one print is less work than rewriting code, so the threshold is lower
_OPERAND = {
    **dict.fromkeys(VALUE_OPS, "a value (.item(), float(), print, if)"),
    **dict.fromkeys(DATA_DEPENDENT_OPS, "the size of a result (a boolean mask, nonzero, unique)"),
    **dict.fromkeys(COPY_OPS, "a tensor (.cpu(), .numpy(), .to('cpu'))"),
}
_DEVICE_SYNC, _STREAM_SYNC, _EVENT_SYNC = "DeviceSynchronize", "StreamSynchronize", "EventSynchronize"


def host_syncs(evidence: Evidence) -> Finding | None:
    """The CPU waits for a value from the GPU; afterwards, the GPU waits for new work.

    Proof: a synchronising call or a blocking copy to the host, such as `.item()` or `.cpu()`. The CPU waits there until
    all queued kernels end. This wait costs nothing, because the GPU works meanwhile. Then the GPU runs no kernel until
    the CPU launches new work: this time is lost.

    Confused with: copies of batches from pageable memory, which also make the CPU wait (`pageable_copies`); data
    loading and other causes that keep the GPU idle after the wait (their time is not counted here); the profiler's own
    synchronisation at its start and end.

    What to do: keep values on the GPU and read them rarely, say every fifty steps, or once after the loop.
    """
    if evidence.ledger.typical_frac(*REFILL_PARTS, "copies") < _MIN_SYNC_FRAC:
        return None
    waits = evidence.cached(host_waits)
    if waits is None:
        return None
    parts = (*REFILL_PARTS, "copies") if waits.copying_ns > waits.idle_ns / 2 else REFILL_PARTS
    idle_ns = evidence.unprofiled_ns(waits.idle_ns, *parts)
    share = idle_ns / evidence.step_ns
    if share < _MIN_SYNC_FRAC:
        return None
    operand = _awaited_operand(waits)
    return Finding(
        ledger_parts=parts,
        claim=f"{no_kernel_share(evidence, share, f'waiting for {operand}')}.",
        evidence=_evidence(evidence, waits),
        numbers=known_numbers(
            exposed_frac=share, exposed_ns=idle_ns, blocked_ns=waits.blocked_ns, per_step=waits.count
        ),
        fix=_fix(waits.by_op[0][0]),
        advice='torch.cuda.set_sync_debug_mode("warn") prints a warning for every line that synchronises.',
        gain=evidence.gain_of_named_rewrites(
            "no_syncs",
            evidence.gain_of_removing(
                idle_ns,
                "removing 30 to 100 % of the idle time during and after the synchronisations",
                "no synchronisation",
                (0.3, 1.0),
                waits.spans,
            ),
        ),
        rewrites=evidence.applicable_rewrites("no_syncs"),
        confidence=CERTAIN if waits.by_op[0][0] in _OPERAND else LIKELY,
        spans=waits.spans,
    )


def _evidence(evidence: Evidence, waits: HostWaits) -> tuple[str, ...]:
    part = "all" if duration(waits.copying_ns) == duration(waits.idle_ns) else duration(waits.copying_ns)
    copying = f"; for {part} of this time, it copies to the host" if waits.copying_ns else ""
    longest = f" The longest wait takes {duration(waits.longest_ns)}." if waits.count > 1 else ""
    return (
        f"{_wait_counts(evidence, waits)} {plural(waits.count, 'blocks', 'block')} the main thread for "
        f"{duration_in_step(evidence, evidence.unprofiled_ns(waits.blocked_ns))}, while the GPU finishes its "
        f"work.{longest}",
        f"The GPU then has no kernel to run for {duration(waits.idle_ns)}, until the CPU has launched new "
        f"ones{copying}.",
    )


def _awaited_operand(waits: HostWaits) -> str:
    name = waits.by_op[0][0]
    if name in _OPERAND:
        return _OPERAND[name]
    if name.endswith(_DEVICE_SYNC):
        return "all GPU work to finish (torch.cuda.synchronize())"
    kind = "a CUDA stream" if _STREAM_SYNC in name else "a CUDA event" if _EVENT_SYNC in name else "the GPU"
    return f"{kind} ({name})"


def _wait_counts(evidence: Evidence, waits: HostWaits) -> str:
    listed = ", ".join(f"{times} x {name}" for name, times in waits.by_op[:3])
    return f"{count(waits.count, 'wait')} {per_step(evidence)} ({listed})"


def _fix(name: str) -> str:
    """Return the usual replacement for the operator that synchronises; "" if the line that does is unknown."""
    if name in VALUE_OPS:
        return (
            'loss_sum = torch.zeros((), device="cuda")  # before the loop\n\n'
            "loss_sum += loss.detach()  # in the loop: stays on the GPU, no synchronisation\n"
            "if step % 50 == 0:\n"
            "    print(loss_sum.item() / 50)  # one synchronisation in fifty steps\n"
            "    loss_sum.zero_()"
        )
    if name in DATA_DEPENDENT_OPS:
        return (
            "def masked_mean(values, mask):  # instead of values[mask].mean(): only the GPU knows the size of "
            "values[mask]\n"
            "    selected = torch.where(mask, values, torch.zeros_like(values))  # same size, zeros where the mask "
            "is False\n"
            "    return selected.sum() / mask.sum()"
        )
    if name in COPY_OPS:
        return (
            "outputs_on_gpu = []  # before the loop\n\n"
            "outputs_on_gpu.append(outputs.detach())  # in the loop: stays on the GPU, no synchronisation\n\n"
            "results = torch.cat(outputs_on_gpu).cpu()  # after the loop: one copy, one synchronisation"
        )
    if not name.endswith(_DEVICE_SYNC):
        return ""
    return (
        "# instead of torch.cuda.synchronize() around the timed code:\n"
        "start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n"
        "start.record()  # before the timed code\n"
        "end.record()  # after the timed code\n\n"
        "end.synchronize()  # after the loop: one synchronisation\n"
        "print(start.elapsed_time(end), 'ms')"
    )
