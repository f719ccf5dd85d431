"""A rule about unfused optimizers: several small kernels or operators per parameter tensor."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpulab.analysis.host.instant_device import host_step_time
from gpulab.analysis.kernels.interior_kernels import interior_kernels
from gpulab.analysis.kernels.optimizers import OptimizerCost, optimizer_cost_on_cpu, optimizer_cost_on_gpu
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import step_or_recording, step_spends
from gpulab.rules.kernels.speedup import faster_kernels_gain
from gpulab.run import Optimizer, Run
from gpulab.wording import count, duration, percent

_MIN_OPTIMIZER_FRAC = 0.05  # the fix is one argument
_MIN_WORK_COUNT = 40  # fewer kernels or operators are no loop over parameters
_WORK_PER_TENSOR = 3.0  # kernels or operators per tensor: SGD needs 1 to 3 (little to fuse), Adam 8 to 14
_SMALL_WORK_NS = 20_000  # or so short that launch overhead dominates
_MULTI_TENSOR_FRAC = 0.1  # with more multi-tensor kernels, the optimizer is no loop over tensors
_MOST_OVERHEAD = 2  # a step that takes even longer than this with the profiler was slowed down by something else, too
_ROUNDING = "A fused update rounds differently: results agree up to rounding errors, but not bit for bit."
_HOST_BOUND_FRAC = 0.9  # a host that needs this much of each step limits it
# Remaining fraction at worst, at best, at least: measured with AdamW on a CPU, and PyTorch's notes on foreach/fused.
_REMAINING = (0.75, 0.1, 0.03)

FUSED_OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")  # take fused=True, on CPU too; Adagrad on a GPU since 2.13
FOREACH_OPTIMIZERS = (
    "ASGD",
    "Adadelta",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
)  # those with foreach=True only


def unfused_optimizer(evidence: Evidence) -> Finding | None:
    """The optimizer updates its parameters one by one, with several small operations each.

    Proof: inside `Optimizer.step`, several times as many kernels (on a CPU: operators) as parameter tensors, and none
    that updates many tensors at once (multi_tensor_apply, _fused_).

    Confused with: an optimizer that waits for the GPU to finish the backward pass, which costs nothing; plain SGD on a
    few large tensors, where there is nothing to fuse.

    What to do: pass fused=True, or foreach=True if the optimizer has no fused implementation.
    """
    updates = _find_updates(evidence)
    if updates is None or updates.multi_tensor > _MULTI_TENSOR_FRAC * updates.count or updates.count < _MIN_WORK_COUNT:
        return None
    optimizers = [each for each in evidence.run.optimizers if each.kind == updates.kind and not each.fused]
    tensors = sum(each.tensors or 0 for each in optimizers)
    if tensors and updates.count < _WORK_PER_TENSOR * tensors and updates.median_ns > _SMALL_WORK_NS:
        return None
    cost_ns = _cost_ns(evidence, updates)
    share = evidence.step_share(cost_ns)
    is_fused = not optimizers and any(each.kind == updates.kind for each in evidence.run.optimizers)
    if share < _MIN_OPTIMIZER_FRAC or is_fused:
        return None
    implementation = _implementation(evidence, updates.kind)
    rewrites = f"optimizer={implementation}" if implementation else ""
    gain = _fusion_gain(evidence, cost_ns, rewrites)
    if gain is None:
        return None
    per_tensor = f" for {count(tensors, 'parameter tensor')}" if tensors else ""
    return Finding(
        ledger_parts=("compute", "dispatch", "glue")
        if not evidence.on_gpu
        else ("kernels", "launch", "dispatch", "glue"),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to {_optimizer_name(updates)}, which updates "
        f"parameters one by one: {updates.count:,} {updates.unit}s{per_tensor}.",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(cost_ns))} "
            f"in the optimizer step; {_unit_times(evidence, updates, cost_ns)}.",
            *_host_time(evidence, updates, cost_ns),
        ),
        numbers=known_numbers(share_frac=share, cost_ns=cost_ns, per_step=updates.count, tensors=tensors or None),
        fix=_fused_code(evidence, optimizers, implementation),
        advice=_advice(updates.kind, implementation, len(optimizers)),
        gain=gain,
        rewrites=evidence.applicable_rewrites(rewrites),
        confidence=CERTAIN if tensors else LIKELY,
        spans=updates.spans,
        caveats=(_ROUNDING,) if implementation == "fused" else (),
    )


def _unit_times(evidence: Evidence, updates: OptimizerCost, cost_ns: int) -> str:
    """Return how long kernels or operators take, and where the rest goes if kernels take only part of the cost."""
    median = duration(updates.median_ns)
    if not evidence.on_gpu or cost_ns <= updates.cost_ns:
        return f"{_unit_with_article(updates)} takes {median} there (median)"
    total = duration(updates.cost_ns)
    return f"the kernels take {total} in total (median {median} each), and the rest is dispatch and launches"


def _host_time(evidence: Evidence, updates: OptimizerCost, cost_ns: int) -> tuple[str, ...]:
    is_host_time_different = evidence.on_gpu and updates.host_ns != cost_ns
    return (f"The host spends {duration(updates.host_ns)} in it.",) if is_host_time_different else ()


def _fusion_gain(evidence: Evidence, cost_ns: int, rewrites: str) -> Gain | None:
    return faster_kernels_gain(
        evidence,
        _unprofiled(evidence, cost_ns),
        _REMAINING,
        "updating all tensors at once, which cuts the optimizer step by 40 to 90 %",
        "a single pass over the parameters",
        calls=True,
        rewrites=rewrites,
    )


def _find_updates(evidence: Evidence) -> OptimizerCost | None:
    if not evidence.on_gpu:
        return evidence.cached(_updates_on_cpu)
    kernels = evidence.cached(interior_kernels)
    return optimizer_cost_on_gpu(kernels) if kernels is not None else None


def _updates_on_cpu(run: Run, steps: Steps, ledger: Ledger) -> OptimizerCost | None:
    return optimizer_cost_on_cpu(run, steps)


def _cost_ns(evidence: Evidence, updates: OptimizerCost) -> int:
    """Return the cost in a traced step: the device time of the updates, or the host time if the loop is host-bound."""
    needed_ns = evidence.cached(host_step_time).needed_ns
    limited = needed_ns >= _HOST_BOUND_FRAC * (evidence.steps.traced_ns or 1)
    return max(updates.cost_ns, updates.host_ns) if limited else updates.cost_ns


def _unprofiled(evidence: Evidence, cost_ns: int) -> int:
    """Return the cost without the overhead that the profiler adds to each call, scaled to traced time."""
    traced, unprofiled = evidence.steps.traced_ns or 0, evidence.steps.unprofiled_ns or 0
    if not unprofiled or traced <= unprofiled or traced > _MOST_OVERHEAD * unprofiled:
        return cost_ns
    # The profiler adds overhead per call, so these many small calls take more than their share of it.
    added_ns = round((traced - unprofiled) * min(1.0, 1.2 * cost_ns / max(1, traced)))
    return round(max(cost_ns // 2, cost_ns - added_ns) * traced / unprofiled)


def _unit_with_article(updates: OptimizerCost) -> str:
    return "an operator" if updates.unit == "operator" else "a kernel"


def _optimizer_name(updates: OptimizerCost) -> str:
    return "the optimizer" if updates.kind == "optimizer" else updates.kind


def _implementation(evidence: Evidence, kind: str) -> str:
    """Return how PyTorch updates all parameters of this optimizer at once: "fused", "foreach", or "" if it cannot."""
    if kind == "Adagrad" and evidence.on_gpu and not _has_fused_adagrad_on_gpu(evidence.run.machine.torch):
        return "foreach"
    if kind in FUSED_OPTIMIZERS:
        return "fused"
    return "foreach" if kind in FOREACH_OPTIMIZERS and evidence.on_gpu else ""


def _has_fused_adagrad_on_gpu(torch_version: str | None) -> bool:
    """Whether Adagrad takes fused=True on a GPU: PyTorch 2.11 raises RuntimeError, 2.13 does not."""
    numbers = re.match(r"(\d+)\.(\d+)", torch_version or "")
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (2, 13)


def _fused_code(evidence: Evidence, optimizers: Sequence[Optimizer], implementation: str) -> str:
    """Return code that changes all these optimizers in place: their groups, state and schedulers stay."""
    names = [each.name for each in optimizers] or [evidence.names.optimizer]
    if not implementation or not all(names):
        return ""
    return "\n".join(in_place_code(name, implementation) for name in names if name)


def in_place_code(optimizer: str, implementation: str) -> str:
    """Return code that makes the optimizer of this name "fused" or "foreach"."""
    if implementation == "foreach":
        return f'for group in {optimizer}.param_groups:\n    group["foreach"] = True'
    # A fused optimizer counts its steps on the device of the parameter.
    return (
        f"for group in {optimizer}.param_groups:  # they keep their learning rates and other settings\n"
        '    group["foreach"], group["fused"] = False, True\n'
        f"for parameter, state in {optimizer}.state.items():  # empty before the first step\n"
        '    if "step" in state:\n'
        '        state["step"] = state["step"].to(parameter.device)'
    )


def _advice(kind: str, implementation: str, optimizers: int) -> str:
    if not implementation:
        return (
            "torch.optim.AdamW and SGD can update all parameters at once (fused=True); many others take foreach=True."
        )
    target = f"each of the {optimizers} {kind} optimizers" if optimizers > 1 else _article(kind)
    return f"You can also pass {implementation}=True where you create {target}."


def _article(kind: str) -> str:
    return "the optimizer" if kind == "optimizer" else f"the {kind} optimizer"
