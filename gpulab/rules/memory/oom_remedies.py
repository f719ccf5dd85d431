"""What helps where memory ran out: cheapest first, and each only where the figures say that it applies."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpulab.analysis.memory.growth_before_oom import Kept, kept_by_steps
from gpulab.analysis.memory.holders import Held, Holding
from gpulab.hardware.architectures import has_bfloat16
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.kernels.precision import autocast
from gpulab.run import Failure
from gpulab.wording import number, percent, size

WORTH_FRAC = 0.05  # of what is held: to free less is not worth a line of advice
MUCH_FRAC = 0.30  # what costs time or a change of the training is proposed for a third of the memory only
STRANDED_FRAC = 0.10  # of what PyTorch holds: from here on fragmentation is worth a setting
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF"  # this name works in all versions; the newer PYTORCH_ALLOC_CONF from 2.9 on
OF_THE_STEP = re.compile(r" in \w+\(\)$|^the step under way$")  # names of gpulab.capture.memory.holders
KEPT = re.compile(r"Out\[|_+\d*$")  # what IPython keeps of earlier cells, and the graphs of that
NAMELESS = ("the step under way", "objects without a name", "PyTorch's own C++ code")
_LOOK_FOR = (
    "look for a loss or an output that is kept from step to step, and keep loss.item() or outputs.detach() in its place"
)
# IPython keeps a value in five places and an error in four: forgetting it in some of them frees nothing.
_FORGET_VALUES = (
    "import gc\n"
    "shell = get_ipython()\n"
    'shell.run_line_magic("reset", "-f out")   # end a cell with ; and it keeps no value\n'
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
class Remedy:
    """Something to do: why, as a clause; the code where there is code; what it frees where that is known."""

    words: str
    code: str = ""
    frees_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Leak:
    """What each step adds to; where it `fills` memory, any room that is made for the batch fills as well."""

    who: str
    fills: bool
    remedy: Remedy


def remedies(evidence: Evidence, failure: Failure, held: Held) -> tuple[Remedy, ...]:
    """All that apply, cheapest first: free what nobody needs, then settings, then another way to train."""
    found = _leak(evidence, failure, held)
    told = [
        _earlier_values(held),
        _errors(held),
        None if found is None else found.remedy,
        _others(failure),
        _evaluation(evidence, failure, held),
        _fragments(failure, held),
    ]
    if found is None or not found.fills:
        rest = held if found is None else held.but_for(found.who)
        told += [
            _precision(evidence, failure, rest),
            _micro_batches(evidence, failure, rest),
            _checkpoints(failure, rest),
            _optimizer_state(evidence, rest),
        ]
    return tuple(remedy for remedy in told if remedy is not None)


def _earlier_values(held: Held) -> Remedy | None:
    """Values of earlier cells, which the notebook keeps for Out and _."""
    mine = _worth(held, tuple(each for each in held.holdings if KEPT.match(each.who)))
    if not mine:
        return None
    freed = sum(each.bytes for each in mine)
    names = ", ".join(each.who for each in mine[:3])
    return Remedy(
        words=f"the notebook keeps values of earlier cells ({names})",
        code=_FORGET_VALUES,
        frees_bytes=freed,
    )


def _errors(held: Held) -> Remedy | None:
    """An error keeps what its lines were working on: that of an earlier cell, and this one until the next try."""
    earlier = _worth(held, held.of("traceback"))
    mine = _worth(held, (*earlier, *(each for each in held.holdings if OF_THE_STEP.search(each.who))))
    if not mine:
        return None
    if earlier:
        words = "the error of an earlier cell still keeps all that its lines were working on"
        return Remedy(words=words, code=_FORGET_ERROR, frees_bytes=sum(each.bytes for each in earlier))
    kept = size(sum(each.bytes for each in mine))
    words = f"before you try again in this kernel: the error keeps {kept}, all that its lines were working on"
    return Remedy(words=words, code=_FORGET_ERROR)


def _leak(evidence: Evidence, failure: Failure, held: Held) -> _Leak | None:
    """Something keeps what each step made: a list of tensors whose graphs are kept, or memory that grew steadily."""
    grew = None if failure.device is None else kept_by_steps(evidence.run, failure.device)
    if grew is not None and grew.grown_bytes < MUCH_FRAC * max(held.total_bytes, failure.allocated_bytes or 0):
        grew = None
    many = {each.who: each for each in held.of("variable", "output") if each.tensors > 1}
    keepers = [each for each in held.holdings if each.kind == "graph" and each.who in many]
    if grew is not None:
        keepers = keepers or [each for each in held.of("graph") if each.who not in NAMELESS] or list(many.values())
    mine = _worth(held, tuple(keepers))
    if not mine:
        words = "" if grew is None else f"{_grown(grew)}, by whom was not seen: {_LOOK_FOR}"
        return _Leak(who="", fills=True, remedy=Remedy(words=words)) if words else None
    first = mine[0]
    name, _, function = first.who.partition(" in ")
    # What a function held cannot be dropped from outside: it goes with the error.
    drop = "" if function or first.who not in many else f"{name}.clear()\n"
    if first.kind != "graph":
        what, code = f"{many[first.who].tensors} tensors", f"{name}.append(outputs.detach().cpu())   # off the GPU"
    elif first.who in many:
        what = f"{many[first.who].tensors} tensors whose graphs are kept for a backward() to come"
        code = f"{name}.append(loss.item())   # from now on: a number; or loss.detach(), which keeps no graph"
    else:
        what = "the graph of every step"
        code = f"{name} = {name} + loss.item()   # from now on: a number; or loss.detach(), which keeps no graph"
    remedy = Remedy(
        words=f"{'' if grew is None else f'{_grown(grew)}: '}{name} holds {what}",
        code=f"{drop}{code}",
        frees_bytes=first.bytes,
    )
    fills = grew is not None or first.bytes >= held.holdings[0].bytes
    return _Leak(who=first.who, fills=fills, remedy=remedy)


def _grown(grew: Kept) -> str:
    return f"memory grew by {size(grew.grown_bytes / grew.times)} again and again, by {size(grew.grown_bytes)} in all"


def _others(failure: Failure) -> Remedy | None:
    others, capacity = failure.others_bytes, failure.capacity_bytes
    if not others or not capacity or others < WORTH_FRAC * capacity:
        return None
    return Remedy(
        words=f"other processes hold {size(others)} of this GPU: shut down kernels you have done with, or take "
        "another GPU; nvidia-smi lists them",
        frees_bytes=others,
    )


def _evaluation(evidence: Evidence, failure: Failure, held: Held) -> Remedy | None:
    graph = held.bytes_of("graph")
    if failure.phase != "evaluation" or graph < WORTH_FRAC * held.total_bytes:
        return None
    model = evidence.names.model
    return Remedy(
        words="evaluation keeps graphs that no backward() will use",
        code=f"with torch.inference_mode():   # around the whole evaluation\n    outputs = {model}(inputs)",
        frees_bytes=graph,
    )


def _fragments(failure: Failure, held: Held) -> Remedy | None:
    unused = held.unused_bytes
    if failure.simulated or not unused or unused < STRANDED_FRAC * (failure.reserved_bytes or 0):
        return None
    if unused < (failure.needed_bytes or 0):
        return None  # even in one piece it would not have been enough
    return Remedy(
        words=f"{size(unused)} is held by PyTorch in pieces of the wrong size; run this before anything else, in a "
        "restarted kernel",
        code=f'import os\nos.environ["{EXPANDABLE}"] = "expandable_segments:True"',
        frees_bytes=unused,
    )


def _micro_batches(evidence: Evidence, failure: Failure, held: Held) -> Remedy | None:
    """Smaller parts of each batch, whose gradients add up to the same; what a step works on shrinks in proportion."""
    if failure.phase in ("evaluation", "optimizer"):
        return None
    activations = held.bytes_of("graph")
    batch = next((loader.batch_size for loader in evidence.run.loaders if loader.batch_size), None)
    if activations < WORTH_FRAC * held.total_bytes or (not activations and failure.phase is None):
        return None  # it is not the batch that takes the memory
    missing = max(0, (failure.needed_bytes or 0) - (failure.free_bytes or 0))
    # What backward() has yet to make: a gradient for each parameter.
    to_come = max(0, held.bytes_of("parameter") - held.bytes_of("gradient"))
    parts = _parts(activations, 2 * missing + to_come, batch)
    names = evidence.names
    whole = f"{batch} samples in {parts} parts of {max(1, batch // parts)}" if batch else f"each batch in {parts} parts"
    code = (
        f"parts = {parts}\n"
        f"loss_of = torch.nn.functional.cross_entropy   # or the one you use\n"
        f"for inputs, targets in {names.loader}:\n"
        f"    {names.optimizer}.zero_grad()\n"
        f"    for part, wanted in zip(inputs.chunk(parts), targets.chunk(parts)):\n"
        f"        loss = loss_of({names.model}(part), wanted) * len(part) / len(inputs)\n"
        f"        loss.backward()   # frees the part's activations at once\n"
        f"    {names.optimizer}.step()"
    )
    return Remedy(
        words=f"{whole}: the gradients add up to the same (BatchNorm alone sees the parts)",
        code=code,
        frees_bytes=activations * (parts - 1) // parts if activations else None,
    )


def _parts(activations: int, wanted: int, batch: int | None) -> int:
    """The fewest parts, a power of two, that make so much room, as far as can be told from what was kept so far."""
    parts = 2
    while activations and parts < 64 and activations * (parts - 1) // parts < wanted:
        parts *= 2
    return min(parts, max(2, batch or parts))


def _precision(evidence: Evidence, failure: Failure, held: Held) -> Remedy | None:
    graph = held.of("graph")
    if failure.phase in ("optimizer", "evaluation") or held.bytes_of("graph") < WORTH_FRAC * held.total_bytes:
        return None
    # Of half precision there is no half.
    if not any("float32" in (each.largest or "") for each in graph):
        return None
    device = 0 if failure.device is None else failure.device
    gpu = next((each for each in evidence.run.machine.gpus if each.index == device), None)
    bfloat16 = has_bfloat16(gpu)
    kind, scaled = ("bfloat16", "") if bfloat16 else ("float16", ", which needs a gradient scaler")
    return Remedy(
        words=f"{kind} autocast around the forward pass{scaled}: activations that matrix products make take half the "
        "bytes",
        code=autocast(evidence, bfloat16=bfloat16).replace("import torch\n\n", "import torch\n"),
    )


def _checkpoints(failure: Failure, held: Held) -> Remedy | None:
    graph = held.bytes_of("graph")
    if failure.phase in ("optimizer", "evaluation") or not graph or graph < MUCH_FRAC * held.total_bytes:
        return None
    return Remedy(
        words="checkpointing computes activations twice instead of keeping them, for a quarter to a third more time: "
        "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) around each large block"
    )


def _optimizer_state(evidence: Evidence, held: Held) -> Remedy | None:
    """The state of the optimizer, where it is much of what is held."""
    state, parameters = held.bytes_of("optimizer"), held.bytes_of("parameter")
    if not parameters or state < MUCH_FRAC * held.total_bytes:
        return None
    share, kind = percent(state / held.total_bytes), evidence.names.optimizer_kind
    return Remedy(
        words=f"the state of {kind} is {share} of what is held ({size(state)}, "
        f"{number(state / parameters, 2)} times the parameters): an optimizer with less of it "
        "(torch.optim.Adafactor; SGD with momentum: as much as the parameters) makes room",
    )


def _worth(held: Held, mine: tuple[Holding, ...]) -> tuple[Holding, ...]:
    return mine if sum(each.bytes for each in mine) >= max(1, WORTH_FRAC * held.total_bytes) else ()
