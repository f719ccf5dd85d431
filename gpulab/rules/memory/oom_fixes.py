"""Fixes for an out-of-memory error, cheapest first, each only if the memory figures show that it applies."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpulab.analysis.memory.growth_before_oom import SteadyGrowth, steady_growth
from gpulab.analysis.memory.holders import MemoryHolder, MemoryHolders
from gpulab.hardware.architectures import has_bfloat16
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.pasted_names import is_variable
from gpulab.rules.kernels.precision import autocast_code
from gpulab.run import Failure
from gpulab.wording import count, percent, size

MIN_FREED_FRAC = 0.05  # of allocated memory; freeing less is not worth a line of advice
_MIN_LARGE_FRAC = 0.30  # of allocated memory; fixes that cost time or change the training must free at least this much
MIN_FRAGMENTED_FRAC = 0.10  # of reserved memory; above it, fragmentation is worth a setting
ALLOCATOR_SETTING = "PYTORCH_CUDA_ALLOC_CONF"  # works in all versions; PYTORCH_ALLOC_CONF only from 2.9 on
_OWNED_BY_STEP = re.compile(r" in \w+\(\)$|^the step under way$")  # names of gpulab.capture.memory.holders
_KEPT_BY_IPYTHON = re.compile(r"Out\[|_+\d*$")  # outputs of earlier cells that IPython keeps, and their graphs
_UNNAMED_OWNERS = ("the step under way", "objects without a name", "PyTorch's own C++ code")
_LEAK_HINT = (
    "look for a loss or an output that is stored in every step, and store loss.item() or outputs.detach() instead"
)
# IPython keeps a value in five places and an error in four; clearing only some of them frees nothing.
_FORGET_VALUES = (
    "import gc\n"
    "shell = get_ipython()\n"
    'shell.run_line_magic("reset", "-f out")   # end a cell with ; so that its value is not kept\n'
    'shell.push(dict.fromkeys(("_", "__", "___"), ""), interactive=False)\n'
    "gc.collect()"
)
_FORGET_ERROR = (
    "import gc, sys\n"
    "shell = get_ipython()\n"
    "shell.last_execution_result = shell.InteractiveTB.tb = None\n"
    "sys.last_value = sys.last_traceback = sys.last_exc = None\n"
    "gc.collect()"
)


@dataclass(frozen=True, kw_only=True)
class OomFix:
    """A fix: the reason as a clause, code if there is any, and the bytes it frees if known."""

    description: str
    code: str = ""
    frees_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Leak:
    """Memory that each step adds to. If it `fills` the memory, memory freed by other fixes fills up again."""

    owner: str
    fills: bool
    fix: OomFix


def oom_fixes(evidence: Evidence, failure: Failure, owners: MemoryHolders) -> tuple[OomFix, ...]:
    """Return all fixes that apply, cheapest first: free unused memory, then settings, then changes to the training."""
    leak = _leak(evidence, failure, owners)
    fixes = [
        _earlier_values(owners),
        _errors(owners),
        None if leak is None else leak.fix,
        _others(failure),
        _evaluation(evidence, failure, owners),
        _fragmentation(failure, owners),
    ]
    if leak is None or not leak.fills:
        rest = owners if leak is None else owners.without(leak.owner)
        fixes += [
            _precision(evidence, failure, rest),
            _micro_batches(evidence, failure, rest),
            _checkpoints(failure, rest),
            _optimizer_state(evidence, rest),
        ]
    return tuple(fix for fix in fixes if fix is not None)


def _earlier_values(owners: MemoryHolders) -> OomFix | None:
    """Return the fix for outputs of earlier cells, which the notebook keeps in Out and _."""
    holdings = _large_enough(owners, tuple(each for each in owners.holders if _KEPT_BY_IPYTHON.match(each.name)))
    if not holdings:
        return None
    freed = sum(each.bytes for each in holdings)
    names = ", ".join(each.name for each in holdings[:3])
    return OomFix(
        description=f"the notebook keeps outputs of earlier cells ({names})",
        code=_FORGET_VALUES,
        frees_bytes=freed,
    )


def _errors(owners: MemoryHolders) -> OomFix | None:
    """Return the fix for a traceback, of an earlier cell or of this error, which keeps local variables alive."""
    earlier = _large_enough(owners, owners.of_kinds("traceback"))
    holdings = _large_enough(owners, (*earlier, *(each for each in owners.holders if _OWNED_BY_STEP.search(each.name))))
    if not holdings:
        return None
    if earlier:
        reason = "the traceback of an earlier cell keeps the local variables of its frames alive"
        return OomFix(description=reason, code=_FORGET_ERROR, frees_bytes=sum(each.bytes for each in earlier))
    kept_size = size(sum(each.bytes for each in holdings))
    reason = f"before you try again in this kernel: the traceback of this error keeps {kept_size} alive"
    return OomFix(description=reason, code=_FORGET_ERROR)


def _leak(evidence: Evidence, failure: Failure, owners: MemoryHolders) -> _Leak | None:
    """Return the leak, if any: a list of tensors that keep their graphs, or memory that grew steadily."""
    growth = None if failure.device is None else steady_growth(evidence.run, failure.device)
    if growth is not None and growth.grown_bytes < _MIN_LARGE_FRAC * max(
        owners.total_bytes, failure.allocated_bytes or 0
    ):
        growth = None
    lists = {each.name: each for each in owners.of_kinds("variable", "output") if each.tensors > 1}
    keepers = [each for each in owners.holders if each.kind == "graph" and each.name in lists]
    if growth is not None:
        keepers = (
            keepers
            or [each for each in owners.of_kinds("graph") if each.name not in _UNNAMED_OWNERS]
            or list(lists.values())
        )
    holdings = _large_enough(owners, tuple(keepers))
    if not holdings:
        reason = "" if growth is None else f"{_growth_text(growth)}, owner unknown: {_LEAK_HINT}"
        return _Leak(owner="", fills=True, fix=OomFix(description=reason)) if reason else None
    largest = holdings[0]
    name, _, function = largest.name.partition(" in ")
    # Local variables of a function cannot be cleared from outside; they are freed with the traceback.
    drop = "" if function or largest.name not in lists else f"{name}.clear()\n"
    if largest.kind != "graph":
        content, code = (
            count(lists[largest.name].tensors, "tensor"),
            f"{name}.append(outputs.detach().cpu())   # off the GPU",
        )
    elif largest.name in lists:
        content = f"{count(lists[largest.name].tensors, 'tensor')} with autograd graphs"
        code = f"{name}.append(loss.item())   # a number; or loss.detach(), which keeps no graph"
    else:
        content = "the autograd graph of every step"
        code = f"{name} = {name} + loss.item()   # a number; or loss.detach(), which keeps no graph"
    fix = OomFix(
        description=f"{'' if growth is None else f'{_growth_text(growth)}: '}{name} holds {content}",
        code=f"{drop}{code}" if is_variable(name) else "",
        frees_bytes=largest.bytes,
    )
    fills = growth is not None or largest.bytes >= owners.holders[0].bytes
    return _Leak(owner=largest.name, fills=fills, fix=fix)


def _growth_text(growth: SteadyGrowth) -> str:
    return (
        f"memory grew repeatedly by {size(growth.grown_bytes / growth.increases)}, {size(growth.grown_bytes)} in total"
    )


def _others(failure: Failure) -> OomFix | None:
    others, capacity = failure.others_bytes, failure.capacity_bytes
    if not others or not capacity or others < MIN_FREED_FRAC * capacity:
        return None
    return OomFix(
        description=f"other processes hold {size(others)} of this GPU: shut down unused kernels, or use another GPU "
        "(nvidia-smi lists the processes)",
        frees_bytes=others,
    )


def _evaluation(evidence: Evidence, failure: Failure, owners: MemoryHolders) -> OomFix | None:
    graph = owners.bytes_of("graph")
    if failure.phase != "evaluation" or graph < MIN_FREED_FRAC * owners.total_bytes:
        return None
    model = evidence.names.model
    return OomFix(
        description="evaluation keeps autograd graphs that no backward() uses",
        code=f"with torch.inference_mode():   # around the whole evaluation\n    outputs = {model}(inputs)",
        frees_bytes=graph,
    )


def _fragmentation(failure: Failure, owners: MemoryHolders) -> OomFix | None:
    unused = owners.unused_bytes
    if failure.simulated or not unused or unused < MIN_FRAGMENTED_FRAC * (failure.reserved_bytes or 0):
        return None
    if unused < (failure.needed_bytes or 0):
        return None  # too little even if it were contiguous
    return OomFix(
        description=f"{size(unused)} of reserved memory is fragmented; run this first, in a restarted kernel",
        code=f'import os\nos.environ["{ALLOCATOR_SETTING}"] = "expandable_segments:True"',
        frees_bytes=unused,
    )


def _micro_batches(evidence: Evidence, failure: Failure, owners: MemoryHolders) -> OomFix | None:
    """Return the fix that splits each batch; gradients add up to the same, and activations shrink in proportion."""
    if failure.phase in ("evaluation", "optimizer"):
        return None
    activations = owners.bytes_of("graph")
    batch = next((loader.batch_size for loader in evidence.run.loaders if loader.batch_size), None)
    if activations < MIN_FREED_FRAC * owners.total_bytes or (not activations and failure.phase is None):
        return None  # it is not the batch that takes the memory
    missing = max(0, (failure.needed_bytes or 0) - (failure.free_bytes or 0))
    # backward() still has to allocate a gradient for each parameter.
    to_come = max(0, owners.bytes_of("parameter") - owners.bytes_of("gradient"))
    parts = _micro_batch_count(activations, 2 * missing + to_come, batch)
    names = evidence.names
    split = (
        f"{batch} samples in {parts} micro-batches of {max(1, batch // parts)}"
        if batch
        else f"each batch in {parts} micro-batches"
    )
    code = (
        f"parts = {parts}\n"
        f"loss_function = torch.nn.functional.cross_entropy   # or your own\n"
        f"for inputs, targets in {names.loader}:\n"
        f"    {names.optimizer}.zero_grad()\n"
        f"    for part, target in zip(inputs.chunk(parts), targets.chunk(parts)):\n"
        f"        loss = loss_function({names.model}(part), target) * len(part) / len(inputs)\n"
        f"        loss.backward()   # frees the activations of this micro-batch\n"
        f"    {names.optimizer}.step()"
    )
    return OomFix(
        description=f"{split}: the accumulated gradients are the same (except with BatchNorm, which sees "
        "micro-batches)",
        code=code,
        frees_bytes=activations * (parts - 1) // parts if activations else None,
    )


def _micro_batch_count(activations: int, needed_bytes: int, batch: int | None) -> int:
    """Return the smallest power of two of micro-batches that frees this much memory, by the activations so far."""
    parts = 2
    while activations and parts < 64 and activations * (parts - 1) // parts < needed_bytes:
        parts *= 2
    return min(parts, max(2, batch or parts))


def _precision(evidence: Evidence, failure: Failure, owners: MemoryHolders) -> OomFix | None:
    graph = owners.of_kinds("graph")
    if failure.phase in ("optimizer", "evaluation") or owners.bytes_of("graph") < MIN_FREED_FRAC * owners.total_bytes:
        return None
    # Half precision cannot be halved.
    if not any("float32" in (holding.largest or "") for holding in graph):
        return None
    device = 0 if failure.device is None else failure.device
    gpu = next((each for each in evidence.run.machine.gpus if each.index == device), None)
    bfloat16 = has_bfloat16(gpu)
    kind, scaler_note = ("bfloat16", "") if bfloat16 else ("float16", ", which needs a gradient scaler")
    return OomFix(
        description=f"{kind} autocast around the forward pass{scaler_note}: activations of matrix products take half "
        "the "
        "bytes",
        code=autocast_code(evidence, bfloat16=bfloat16).replace("import torch\n\n", "import torch\n"),
    )


def _checkpoints(failure: Failure, owners: MemoryHolders) -> OomFix | None:
    graph = owners.bytes_of("graph")
    if failure.phase in ("optimizer", "evaluation") or not graph or graph < _MIN_LARGE_FRAC * owners.total_bytes:
        return None
    return OomFix(
        description="checkpointing recomputes activations instead of storing them, at a cost of a quarter to a third "
        "more "
        "time: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) around each large block"
    )


def _optimizer_state(evidence: Evidence, owners: MemoryHolders) -> OomFix | None:
    """Return the fix for optimizer state that is a large part of allocated memory."""
    state = owners.bytes_of("optimizer")
    if not owners.bytes_of("parameter") or state < _MIN_LARGE_FRAC * owners.total_bytes:
        return None
    share, kind = percent(state / owners.total_bytes), evidence.names.optimizer_kind
    return OomFix(
        description=f"the state of {kind} is {share} of allocated memory ({size(state)}): use an optimizer with "
        "less state (torch.optim.Adafactor, or SGD with momentum, which keeps one value per parameter; Adam keeps "
        "two)",
    )


def _large_enough(owners: MemoryHolders, holdings: tuple[MemoryHolder, ...]) -> tuple[MemoryHolder, ...]:
    return holdings if sum(each.bytes for each in holdings) >= max(1, MIN_FREED_FRAC * owners.total_bytes) else ()
