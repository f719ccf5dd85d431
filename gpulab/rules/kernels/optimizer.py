"""Rules about the optimizer's step: one small piece of work after the other for each parameter."""

from __future__ import annotations

from gpulab.analysis.host.host_bound import pace
from gpulab.analysis.kernels.interior import interior
from gpulab.analysis.kernels.optimizers import Updating, updating_on_cpu, updating_on_gpu
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, figures
from gpulab.rules.engine.phrases import duration_in_step, of_each_step
from gpulab.rules.kernels.speedup import faster_work, worth_having
from gpulab.run import Optimizer, Run
from gpulab.wording import duration, percent

OPTIMIZER_WORTH_FRAC = 0.05  # one argument mends it
MANY_PIECES = 40  # fewer pieces of work than this are no loop over parameters
EACH_PIECES = 3.0  # pieces for a tensor: SGD needs 1 to 3 (which is little to fuse), Adam 8 to 14
SMALL_PIECE_NS = 20_000  # or else so short that most of it is the call
WHOLE_FRAC = 0.1  # with more pieces than this for many tensors at once, the optimizer is not a loop over them
HOST_LIMITS_FRAC = 0.9  # a host that needs so much of each step is what limits it
# What is left of it: measured here with AdamW on CPU, and by PyTorch's own notes on foreach and fused.
LEFT = (0.75, 0.1, 0.03)

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")  # optimizers of torch.optim that take fused=True, on CPU too
FOREACH = ("ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")  # those with foreach=True only


def unfused_optimizer(evidence: Evidence) -> Finding | None:
    """The optimizer updates one parameter after the other, several small operations for each.

    Proof: inside `Optimizer.step`, several times as many kernels (on a CPU: operators) as there are tensors, and none
    that updates many at once (multi_tensor_apply, _fused_). Confused with: an optimizer that waits for the GPU to
    finish the backward pass, which costs nothing; plain SGD on few large tensors, where there is nothing to fuse.
    What to do: fused=True, or foreach=True where the optimizer has no fused form.
    """
    found = _updating(evidence)
    if found is None or found.whole > WHOLE_FRAC * found.pieces or found.pieces < MANY_PIECES:
        return None
    told = next((each for each in evidence.run.optimizers if each.kind == found.kind), None)
    tensors = told.tensors if told else None
    if tensors and found.pieces < EACH_PIECES * tensors and found.median_ns > SMALL_PIECE_NS:
        return None
    cost_ns = _cost_ns(evidence, found)
    share = evidence.step_share(cost_ns)
    if share < OPTIMIZER_WORTH_FRAC or (told is not None and told.fused):
        return None
    rewrites = _as_typed(evidence, found, told)
    gain = _at_once(evidence, cost_ns, rewrites)
    if gain is None:
        return None
    each = f" for {tensors} parameter tensors" if tensors else ""
    return Finding(
        parts=("compute", "dispatch", "glue") if not evidence.on_gpu else ("kernels", "launch", "dispatch", "glue"),
        claim=f"{percent(share)} {of_each_step(evidence)} goes to {_named(found)} updating one parameter after the "
        "other: "
        f"{found.pieces:,} {found.unit}s{each}.",
        evidence=(
            f"{duration_in_step(evidence, cost_ns)} in the optimizer's step; {_one(found)} takes "
            f"{duration(found.median_ns)} there (median).",
            *_host_time(evidence, found, cost_ns),
        ),
        numbers=figures(share_frac=share, cost_ns=cost_ns, per_step=found.pieces, tensors=tensors or None),
        fix=_fused(evidence, found, told),
        advice=_advice(evidence, found),
        gain=gain,
        rewrites=evidence.typed(rewrites),
        confidence=CERTAIN if tensors else LIKELY,
        shown_by=found.spans,
    )


def _host_time(evidence: Evidence, found: Updating, cost_ns: int) -> tuple[str, ...]:
    apart = evidence.on_gpu and found.host_ns != cost_ns
    return (f"The host is inside it for {duration(found.host_ns)}.",) if apart else ()


def _at_once(evidence: Evidence, cost_ns: int, rewrites: str) -> Gain | None:
    plain = faster_work(
        evidence,
        _unprofiled(evidence, cost_ns),
        LEFT,
        "the optimizer's step, lessened by 40 to 90 % by updating all tensors at once",
        "even a single pass over the parameters",
        calls=True,
    )
    return worth_having(evidence.predicted(rewrites, plain)) if plain is not None else None


def _updating(evidence: Evidence) -> Updating | None:
    if not evidence.on_gpu:
        return evidence.once(_on_cpu)
    kernels = evidence.once(interior)
    return updating_on_gpu(kernels) if kernels is not None else None


def _on_cpu(run: Run, steps: Steps, ledger: Ledger) -> Updating | None:
    return updating_on_cpu(run, steps)


def _cost_ns(evidence: Evidence, found: Updating) -> int:
    """What it costs a traced step: the device's time for it, or the host's where that is what limits."""
    needed_ns = evidence.once(pace).needed_ns
    limited = needed_ns >= HOST_LIMITS_FRAC * (evidence.steps.traced_ns or 1)
    return max(found.cost_ns, found.host_ns) if limited else found.cost_ns


def _unprofiled(evidence: Evidence, cost_ns: int) -> int:
    """The same without recording, which lengthens each of its many calls; in traced time, as gains are asked."""
    traced, plain = evidence.steps.traced_ns or 0, evidence.steps.plain_ns or 0
    if not plain or traced <= plain:
        return cost_ns
    # Recording adds to calls: these many small ones bear more than their share of it.
    added_ns = round((traced - plain) * min(1.0, 1.2 * cost_ns / max(1, traced)))
    return round(max(cost_ns // 2, cost_ns - added_ns) * traced / plain)


def _one(found: Updating) -> str:
    return "an operator" if found.unit == "operator" else "a kernel"


def _named(found: Updating) -> str:
    return "the optimizer" if found.kind == "optimizer" else found.kind


def _way(evidence: Evidence, kind: str) -> str:
    """How PyTorch updates all parameters at once for this kind of optimizer; "" where it does not."""
    if kind in FUSED:
        return "fused"
    return "foreach" if kind in FOREACH and evidence.on_gpu else ""


def _as_typed(evidence: Evidence, found: Updating, told: Optimizer | None) -> str:
    way = _way(evidence, told.kind if told else found.kind)
    return f"optimizer={way}" if way else ""


def _fused(evidence: Evidence, found: Updating, told: Optimizer | None) -> str:
    kind = told.kind if told else found.kind
    way = _way(evidence, kind)
    if not way:
        return ""
    model, optimizer = evidence.names.model, evidence.names.optimizer
    return (
        "import torch\n\n"
        f'{optimizer} = torch.optim.{kind}({model}.parameters(), lr={optimizer}.param_groups[0]["lr"], {way}=True)'
    )


def _advice(evidence: Evidence, found: Updating) -> str:
    if _way(evidence, found.kind):
        return "Where your optimizer has other arguments (weight_decay, betas, momentum), give them again."
    return (
        "torch.optim.AdamW and SGD can update all parameters at once (fused=True); so can many others by foreach=True."
    )
