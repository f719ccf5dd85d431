"""A rule about modules of one structure that run one after another, although one call could compute all of them."""

from __future__ import annotations

from gpulab.analysis.kernels.optimizers import OptimizerCost, optimizer_cost_on_cpu
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import sentences, step_or_recording
from gpulab.rules.host.dispatch import dispatch_share
from gpulab.run import Run
from gpulab.user_objects import SAME_INPUT, SeparateModules
from gpulab.wording import count, duration, percent

_MIN_SPEEDUP = 1.3  # of their layers, as timed alone
_MIN_SHARE, _MOST_SHARE = 0.06, 0.95  # of a step that goes away: at best, and at most
_MOST_LISTED = 4  # groups of modules
# What goes away per time that joining saved alone: at worst, at best, and at most. Six models, each with three
# optimizers, measured 0.5 (with torch.vmap, which has overhead of its own) to 4.2, without what the optimizer saves.
_REMOVED = (0.4, 3.0, 6.0)
_REMOVED_OF_UPDATES = (0.4, 1.0, 1.0)  # of the optimizer's time for tensors that no longer exist
_REMOVED_OF_DISPATCH = (0.3, 1.0)  # on a GPU, of the calls that no longer exist
_WITH_BACKWARD = 3  # forward and backward pass / forward pass


def separate_modules(evidence: Evidence) -> Finding | None:
    """Modules of one structure run one after another, although none needs the output of another one.

    Examples are a list of embedding tables, of heads or experts, a linear layer for each channel, and the members of an
    ensemble. Each call costs its dispatch, forward and backward, and each parameter tensor its own update.

    Proof: in a watched step, four or more modules with layers of the same classes and shapes got the same unchanged
    tensor, or parts of one. On a CPU, their layers were timed after the recorded code, one after another and as one
    operator.

    Confused with: layers that follow each other, which get outputs of each other; queries, keys and values of
    attention, which are three; one module that is called several times (`unbatched_calls`); modules with so much work
    per call that joining them saves nothing.

    What to do: replace them by one module: one nn.Embedding with offsets, one wider nn.Linear, torch.baddbmm with
    weights of shape (modules, inputs, outputs), or torch.vmap over stacked parameters.
    """
    groups = [group for group in evidence.run.separate_modules if _is_worth_joining(group, evidence.on_gpu)]
    if not groups:
        return None
    worst_ns, best_ns, most_ns = _saved_on_gpu(evidence, groups) if evidence.on_gpu else _saved(evidence, groups)
    forward_frac = min(_MOST_SHARE, sum(group.step_frac or 0.0 for group in groups))
    if best_ns < _MIN_SHARE * evidence.step_ns:
        return None
    first = groups[0]
    modules = (
        f"{first.modules} modules of one structure ({first.kind}{f', {first.first} and others' * bool(first.first)})"
    )
    return Finding(
        claim=f"{percent(forward_frac)} {step_or_recording(evidence)} goes to forward passes of {modules} that run one "
        "after another, and more to their backward passes and updates. One call could compute all of them.",
        evidence=tuple(_group_text(group) for group in groups[:_MOST_LISTED]),
        numbers=known_numbers(
            modules=first.modules,
            calls=first.calls,
            tensors=first.tensors,
            step_frac=forward_frac,
            separate_ns=first.separate_ns,
            joined_ns=first.joined_ns,
        ),
        advice=_advice(first),
        gain=_gain(evidence, worst_ns, best_ns, most_ns),
        # On a GPU, neither the layers nor a change of this kind were ever timed.
        confidence=SUSPECT if evidence.on_gpu else LIKELY,
    )


def _is_worth_joining(group: SeparateModules, on_gpu: bool) -> bool:
    if not group.step_frac or group.step_frac >= 1 or group.modules < 2:
        return False
    if on_gpu:
        return True
    return bool(group.separate_ns and group.joined_ns and group.separate_ns >= _MIN_SPEEDUP * group.joined_ns)


def _saved(evidence: Evidence, groups: list[SeparateModules]) -> tuple[int, int, int]:
    """Return what a step saves on a CPU: at worst, at best, and at most, in ns."""
    layers_ns = sum((group.separate_ns or 0) - (group.joined_ns or 0) for group in groups)
    updates_ns = _updates_ns(evidence, groups)
    worst, best, most = (
        round(of_layers * layers_ns + of_updates * updates_ns)
        for of_layers, of_updates in zip(_REMOVED, _REMOVED_OF_UPDATES, strict=True)
    )
    # Other operators of the modules, such as activations, were not timed: at best they are joined as the layers are.
    best = max(best, updates_ns + round(sum(_saved_frac(group) for group in groups) * evidence.step_ns))
    most_ns = round(_MOST_SHARE * evidence.step_ns)
    one_is_left_ns = round(most_ns * (1 - 1 / max(group.modules for group in groups)))
    return min(worst, one_is_left_ns), min(best, one_is_left_ns), min(max(most, best), most_ns)


def _saved_frac(group: SeparateModules) -> float:
    """Return the share of a step that goes away if all operators of the modules are joined as their layers are."""
    left_frac = (group.joined_ns or 0) / (group.separate_ns or 1)
    return _WITH_BACKWARD * (group.step_frac or 0.0) * (1 - left_frac)


def _updates_ns(evidence: Evidence, groups: list[SeparateModules]) -> int:
    """Return the optimizer's time for tensors that one module would not have; 0 if it is not recorded."""
    cost = evidence.cached(_optimizer_cost)
    tensors = sum(optimizer.tensors or 0 for optimizer in evidence.run.optimizers)
    if cost is None or not tensors:
        return 0
    fewer = sum(group.tensors - group.tensors // group.modules for group in groups)
    return round(evidence.unprofiled_ns(cost.cost_ns) * min(1.0, fewer / tensors))


def _optimizer_cost(run: Run, steps: Steps, _ledger: Ledger) -> OptimizerCost | None:
    return optimizer_cost_on_cpu(run, steps)


def _saved_on_gpu(evidence: Evidence, groups: list[SeparateModules]) -> tuple[int, int, int]:
    """Return what a step saves that waits for dispatch: at worst, at best, and at most, in ns."""
    _, exposed_ns = dispatch_share(evidence)
    saved_frac = sum((group.step_frac or 0.0) * (1 - 1 / group.modules) for group in groups)
    most_ns = round(min(1.0, _WITH_BACKWARD * saved_frac) * exposed_ns)
    worst, best = _REMOVED_OF_DISPATCH
    return round(worst * most_ns), round(best * most_ns), exposed_ns


def _gain(evidence: Evidence, worst_ns: int, best_ns: int, most_ns: int) -> Gain:
    basis = (
        "the dispatch that these calls cost"
        if evidence.on_gpu
        else "the measured times of their layers, one after another and as one operator, and of the optimizer"
    )
    removed = worst_ns / max(1, most_ns), best_ns / max(1, most_ns)
    return evidence.gain_of_removing(most_ns, basis, "all of these modules in one call at no cost", removed)


def _group_text(group: SeparateModules) -> str:
    place = f" at {group.location}" if group.location else ""
    name = group.first or group.kind
    timed = (
        f" Their layers, forward and backward, took {duration(group.separate_ns)} one after another and "
        f"{duration(group.joined_ns)} as one operator each, alone on this machine."
        if group.separate_ns and group.joined_ns
        else ""
    )
    return (
        f"{name} and {count(group.modules - 1, 'module')} like it: {count(group.calls, 'call')} per step{place}, on "
        f"{group.inputs}, with {count(group.tensors, 'parameter tensor')} in all.{timed}"
    )


def _advice(group: SeparateModules) -> str:
    return sentences(
        _replacement(group),
        "Stack the present weights (torch.stack or torch.cat under torch.no_grad()), so that outputs stay the same, "
        "and create the optimizer afterwards.",
    )


def _replacement(group: SeparateModules) -> str:
    modules = group.modules
    if group.kind == "Embedding":
        return (
            f"Use one table in place of {modules}: table = nn.Embedding(sum(rows), width); offsets = torch.tensor([0, "
            "*rows[:-1]]).cumsum(0); outputs = table(indices + offsets), with a column of indices for each table."
        )
    if group.kind == "Linear" and group.inputs == SAME_INPUT:
        return (
            f"Use one layer in place of {modules}: nn.Linear(inputs, {modules} * outputs), and output.unflatten(-1, "
            f"({modules}, -1))."
        )
    if group.kind == "Linear":
        return (
            f"Use one weight of shape ({modules}, inputs, outputs) and one bias of shape ({modules}, 1, outputs): "
            f"outputs = torch.baddbmm(bias, x, weight), with x of shape ({modules}, batch, inputs)."
        )
    return (
        f"Give each layer a dimension for the {modules} modules: weights of shape ({modules}, inputs, outputs) and "
        "torch.baddbmm in place of nn.Linear, groups in place of several convolutions. With less editing, but "
        "overhead of its own: parameters, buffers = torch.func.stack_module_state(modules), and torch.vmap over "
        "torch.func.functional_call."
    )
