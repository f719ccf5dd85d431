"""Rules about the host that waits for the device: a value it asks for, and the queue that runs dry meanwhile."""

from __future__ import annotations

from gpulab.analysis.host.syncs import FILLING, MOVES, SHAPES, VALUES, Syncs, host_waits
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, figures
from gpulab.rules.engine.phrases import duration_in_step, of_each_step
from gpulab.wording import count, duration, percent

SYNC_WORTH_FRAC = 0.03  # to take one print out of a loop is little work, so a little earlier than a rewrite
WHAT = {
    **dict.fromkeys(VALUES, "a value (.item(), float(), print, if)"),
    **dict.fromkeys(SHAPES, "the size of a result (a boolean mask, nonzero, unique)"),
    **dict.fromkeys(MOVES, "a tensor (.cpu(), .numpy(), .to('cpu'))"),
}
CALLS = "the end of the GPU's work (torch.cuda.synchronize())"


def host_syncs(evidence: Evidence) -> Finding | None:
    """The loop asks the GPU for a value, waits for it, and the GPU then waits for new work.

    Proof: a synchronising call, or a copy to the host that returns only when the data are there, and the device idle
    in it and after it until the queue is filled again, or busy with nothing but that copy. The wait itself is no
    loss: the GPU works meanwhile. Confused with: copies of batches from pageable memory, which wait too
    (`pageable_copies`); what the loop does on its own after the wait, such as loading data, which is not counted
    here; and the profiler's own synchronisation at its edges. What to do: keep values on the GPU and look at them
    every fifty steps.
    """
    if evidence.ledger.share(*FILLING, "copies") < SYNC_WORTH_FRAC:
        return None
    waits = evidence.once(host_waits)
    if waits is None:
        return None
    share = evidence.step_share(waits.idle_ns)
    if share < SYNC_WORTH_FRAC:
        return None
    what = _what(waits)
    return Finding(
        parts=("sync", "copies") if waits.copying_ns > waits.idle_ns / 2 else ("sync",),
        claim=f"The GPU computes nothing {percent(share)} {of_each_step(evidence)} because the loop waits for {what}.",
        evidence=_evidence(evidence, waits),
        numbers=figures(
            exposed_frac=share, exposed_ns=waits.idle_ns, blocked_ns=waits.blocked_ns, per_step=waits.count
        ),
        fix=_fix(waits.by_op[0][0]),
        advice='torch.cuda.set_sync_debug_mode("warn") names every line that waits.',
        gain=evidence.predicted(
            "no_syncs",
            evidence.bounded(
                evidence.plain_ns(waits.idle_ns),
                "the time in and after the waits, removed by 30 to 100 %",
                "even no waiting",
                (0.3, 1.0),
                waits.spans,
            ),
        ),
        rewrites=evidence.typed("no_syncs"),
        confidence=CERTAIN if waits.by_op[0][0] in WHAT else LIKELY,
        shown_by=waits.spans,
    )


def _evidence(evidence: Evidence, waits: Syncs) -> tuple[str, ...]:
    copying = f", {duration(waits.copying_ns)} of that copying to the host" if waits.copying_ns else ""
    return (
        f"{_named(waits)}: the main thread is held for {duration_in_step(evidence, waits.blocked_ns)}; meanwhile the GPU "
        "mostly works, which is no loss.",
        f"In them and right after them, until new work arrives, the GPU computes nothing for {duration(waits.idle_ns)}"
        f"{copying}; the longest wait lasts {duration(waits.longest_ns)}.",
    )


def _what(waits: Syncs) -> str:
    return WHAT.get(waits.by_op[0][0], CALLS)


def _named(waits: Syncs) -> str:
    listed = ", ".join(f"{times} x {name}" for name, times in waits.by_op[:3])
    return f"{count(waits.count, 'wait')} in each step ({listed})"


def _fix(name: str) -> str:
    """The usual way out for what the operator asks for."""
    if name in VALUES:
        return (
            'loss_sum = torch.zeros((), device="cuda")  # before the loop\n\n'
            "loss_sum += loss.detach()  # in the loop: stays on the GPU, waits for nothing\n"
            "if step % 50 == 0:\n"
            "    print(loss_sum.item() / 50)  # one wait in fifty steps\n"
            "    loss_sum.zero_()"
        )
    if name in SHAPES:
        return (
            "def masked_mean(values, mask):  # instead of values[mask].mean(), whose size only the GPU knows\n"
            "    kept = torch.where(mask, values, torch.zeros_like(values))  # the same size, zeros where False\n"
            "    return kept.sum() / mask.sum()"
        )
    if name in MOVES:
        return (
            "kept = []  # before the loop\n\n"
            "kept.append(outputs.detach())  # in the loop: stays on the GPU, waits for nothing\n\n"
            "results = torch.cat(kept).cpu()  # after the loop: one copy, one wait"
        )
    return (
        "# instead of torch.cuda.synchronize() around what is timed:\n"
        "begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n"
        "begin.record()  # before it\n"
        "end.record()  # after it\n\n"
        "end.synchronize()  # after the loop: one wait\n"
        "print(begin.elapsed_time(end), 'ms')"
    )
