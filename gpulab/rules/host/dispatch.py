"""Rules about operator dispatch: CPU-bound loops of small operators, and recompilation by torch.compile."""

from __future__ import annotations

from dataclasses import replace

from gpulab.analysis.host.gc_and_compilation import compilation_cost, overlap_ns, stall_spans
from gpulab.analysis.host.launches import LaunchStats, small_operators_ns
from gpulab.analysis.steps.forward_backward import forward_backward_spans
from gpulab.analysis.steps.ledger import DISPATCH_KEYS
from gpulab.intervals import intersect, union_of
from gpulab.rules.engine.busiest_function import busiest_function_text
from gpulab.rules.engine.compile_code import compile_code
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import idle_share, per_step, range_over_steps, step_or_recording, step_spends
from gpulab.rules.host.garbage_collection import stall_gain, stall_share, stall_share_of
from gpulab.wording import count, duration, percent, ratio

_MIN_DISPATCH_FRAC = 0.15  # some dispatch is the price of eager mode; from about a sixth of a step on it is a cause
_SMALL_WORK_NS = 20_000  # median kernel or operator; a launch costs 5-12 us on the GPUs measured
_MIN_WORK_COUNT = 50  # fewer kernels or operators in all interior steps are no loop
# Removed fraction of the dispatch cost of forward and backward on a CPU. The small models of ordinary loops became
# slower about as often as faster (0.5x to 1.5x).
_COMPILED_ON_CPU = (-0.6, 0.8)
# Removed fraction of dispatch at worst, and of all small operators at best; 1.3x to 4.6x was measured on four loops.
_FIXED_FRACS = (0.5, 0.85)  # of short calls of recurrent layers
_BATCHED = (0.2, 0.95)
_ONE_GRAPH = ', mode="reduce-overhead"'
_ADVICE = "A larger batch also does more work per launch, but changes the training."
_ADVICE_ON_CPU = (
    "Do more work per operator: replace Python loops over samples, tokens, time steps or parameters by operators on "
    "whole tensors, or use a larger batch."
)
_GRAPHS_CAVEAT = (
    "These CUDA graphs contain forward and backward, not the optimizer; the prediction assumes the same. CUDA graphs "
    "need inputs of one size and reserve memory. Each call overwrites the outputs of the previous call: clone() "
    "outputs that you keep."
)
_MIN_COMPILATION_FRAC = 0.05
_MODULE = "a module"  # as recorded if the whole model was compiled
_MIN_COMPILATIONS = 2  # a single late compilation may be the last, smaller batch of an epoch


def dispatch_bound(evidence: Evidence) -> Finding | None:
    """The loop is CPU-bound: dispatching and launching many small operators takes longer than running them.

    Proof: while the GPU is idle, the host is inside launch calls, operator dispatch or the short Python code between
    operators. The kernels are many and short (median under 20 us). In a run without a GPU, dispatch, short operators
    and the code between them take much of the step.

    Confused with: synchronisation and data loading, which have rows of their own in the table of the step time; garbage
    collection and compilation; profiler overhead, which lengthens every call. Where gpulab has measured this overhead,
    it is not part of the share.

    What to do: launch fewer, larger kernels: use torch.compile, CUDA graphs, or a larger batch. On a CPU, replace
    Python loops by operations on whole tensors; torch.compile can make a small model slower there, so measure it.
    """
    share, exposed_ns = dispatch_share(evidence)
    launches = evidence.launches
    if share < _MIN_DISPATCH_FRAC or launches is None:
        return None
    if launches.median_ns > _SMALL_WORK_NS or launches.count < _MIN_WORK_COUNT:
        return None
    return Finding(
        ledger_parts=DISPATCH_KEYS,
        claim=_claim(evidence, share, launches),
        evidence=(
            f"{step_spends(evidence, exposed_ns)} on {_ledger_rows(evidence)} "
            f"({range_over_steps(evidence, *DISPATCH_KEYS)}).",
            *_unknown_overhead(evidence),
            _work_sizes(launches),
            *busiest_function_text(evidence),
        ),
        numbers=known_numbers(
            exposed_frac=share, exposed_ns=exposed_ns, per_step=launches.per_step, median_ns=launches.median_ns
        ),
        fix=compile_code(evidence, "CUDA graphs of forward and backward", _ONE_GRAPH) if evidence.on_gpu else "",
        advice=_ADVICE if evidence.on_gpu else _ADVICE_ON_CPU,
        gain=_compile_gain(evidence, exposed_ns) if evidence.on_gpu else batching_gain(evidence, exposed_ns),
        rewrites=_rewrites(evidence),
        # On a CPU, dispatch is a fact, but half of the ordinary loops had a better remedy than fewer operators.
        confidence=CERTAIN if evidence.on_gpu and not launches.uses_cuda_graphs else LIKELY,
        spans=evidence.ledger.spans["dispatch"],
        caveats=_compile_caveat(evidence, exposed_ns),
    )


def _compile_caveat(evidence: Evidence, exposed_ns: int) -> tuple[str, ...]:
    """Return what CUDA graphs need, or what torch.compile is predicted to give on a CPU; () without a model for it."""
    if not compile_code(evidence):
        return ()
    if evidence.on_gpu:
        return (_GRAPHS_CAVEAT,)
    if evidence.run.facts.get("compiler") == "none":
        return ()
    gain = _compile_gain_on_cpu(evidence, exposed_ns)
    speedups = f"{ratio(gain.worst_speedup).removesuffix('x')}-{ratio(gain.best_speedup)}"
    return (
        f"torch.compile also reduces dispatch, but on a CPU it can make a small model slower (predicted here: "
        f"{speedups}). Measure it before you keep it.",
    )


def recompilation(evidence: Evidence) -> Finding | None:
    """torch.compile still compiles functions after the third step.

    Proof: at least two compilations, recorded by PyTorch itself, after the third step. A guard of the compiled code
    fails: usually a tensor size that changes between batches.

    Confused with: the first compilations, which happen once (`slow_first_step`); a single recompilation for a smaller
    last batch.

    What to do: compile with dynamic=True, or pad all batches to the same size.
    """
    compilations = evidence.cached(compilation_cost)
    if compilations is None or compilations.count < _MIN_COMPILATIONS:
        return None
    share = stall_share(compilations)
    if share < _MIN_COMPILATION_FRAC:
        return None
    latest, _ = compilations.counts_by_name[0]
    function, _, reason = latest.partition(", again: ")
    return Finding(
        ledger_parts=evidence.idle_parts_of(compilations.spans) or ("python",),
        claim=f"{percent(share)} {stall_share_of(evidence, compilations)} goes to recompiling "
        f"{function.replace(_MODULE, 'the model')}.",
        evidence=(
            f"{count(compilations.count, 'compilation')} in {compilations.steps_with_stall} of {compilations.steps} "
            f"steps after the third, {duration(compilations.mean_ns)} of an average step; the longest takes "
            f"{duration(compilations.longest_ns)}.",
            *((f"The reason that PyTorch gives: {reason}.",) if reason else ()),
        ),
        numbers=known_numbers(exposed_frac=share, exposed_ns=compilations.per_step_ns, compilations=compilations.count),
        fix=_dynamic_compile_code(evidence, function, reason),
        advice='TORCH_LOGS="recompiles" in the environment prints the reason for each. After eight versions of a '
        "function PyTorch gives up and runs it in eager mode.",
        gain=stall_gain(
            evidence, compilations, "removing 80 to 100 % of the recompilations", "no recompilation", (0.8, 1.0)
        ),
        confidence=CERTAIN,
        spans=compilations.spans,
    )


def dispatch_share(evidence: Evidence) -> tuple[float, int]:
    """Return the cost of dispatch without the profiler and without stalls: its share of the step, and ns per step."""
    stalled_ns = overlap_ns(evidence.ledger, stall_spans(evidence.run), *DISPATCH_KEYS)
    step = evidence.typical_step
    exposed_ns = max(0, step.sum_ns(*DISPATCH_KEYS) - step.scaled_ns(stalled_ns, *DISPATCH_KEYS))
    return exposed_ns / evidence.step_ns, exposed_ns


def _claim(evidence: Evidence, share: float, launches: LaunchStats) -> str:
    median = duration(launches.median_ns)
    if evidence.on_gpu:
        work = f"{launches.per_step:,} small {launches.unit}s {per_step(evidence)}"
        idle = idle_share(evidence, share, "launching small kernels")
        return f"{idle}: the loop is CPU-bound. It takes longer to dispatch {work} than to run them ({median} each)."
    return (
        f"{percent(share)} {step_or_recording(evidence)} is dispatch overhead: {launches.per_step:,} short "
        f"{launches.unit}s {per_step(evidence)} (median {median}), and the Python code between them."
    )


def _ledger_rows(evidence: Evidence) -> str:
    return (
        "launch calls, dispatch and the Python code between them"
        if evidence.on_gpu
        else "short operators, dispatch and the Python code between them"
    )


def _unknown_overhead(evidence: Evidence) -> tuple[str, ...]:
    if evidence.run.source.how == "virtual":
        return ()  # a virtual GPU has no profiler overhead
    if evidence.steps.unprofiled_ns is None:
        return ("The profiler lengthens these calls; by how much was not measured in this run.",)
    return ()


def _work_sizes(launches: LaunchStats) -> str:
    call = "" if launches.call_ns is None else f"; one launch call takes {duration(launches.call_ns)}"
    return f"{percent(launches.small_frac)} of the {launches.unit}s are shorter than 10 us{call}."


def _compile_gain(evidence: Evidence, exposed_ns: int) -> Gain:
    spans = union_of(*(evidence.ledger.spans[key] for key in DISPATCH_KEYS if key in evidence.ledger.spans))
    basis = "cutting the cost of dispatch and launches by 30 to 80 %, as compilers do"
    free_calls, rewrites = "dispatch and launches at no cost", _rewrites(evidence)
    gain = evidence.gain_of_named_rewrites(
        rewrites, evidence.gain_of_removing(exposed_ns, basis, free_calls, (0.3, 0.8), spans)
    )
    if not rewrites:
        return gain
    cold_floor_ns = max(gain.floor_ns, evidence.step_ns - exposed_ns)
    return replace(gain, cold_floor_ns=cold_floor_ns, floor_assumes=free_calls)


def batching_gain(
    evidence: Evidence, exposed_ns: int, removed: tuple[float, float] = _BATCHED, layers_ns: int = 0
) -> Gain:
    """Return the gain of fewer, larger operators: dispatch and small operators may all go away.

    `removed`: the fractions of dispatch at worst, and of all small operators at best. `layers_ns`: other calls, of
    which a part is a fixed cost.
    """
    step_ns, dispatch_ns = evidence.step_ns, evidence.ledger.median_ns(*DISPATCH_KEYS)
    removable_ns = max(exposed_ns, evidence.unprofiled_ns(dispatch_ns + evidence.cached(small_operators_ns)))
    floor_ns = min(step_ns, max(1, step_ns - removable_ns - layers_ns))
    low = percent(removed[0]).removesuffix(" %")
    recurrent = ", and most of that of short calls of recurrent layers" if layers_ns else ""
    saved_ns = removed[1] * min(removable_ns, step_ns) + _FIXED_FRACS[1] * layers_ns
    best_ns = max(floor_ns, step_ns - round(saved_ns))
    return Gain(
        step_ns=step_ns,
        best_ns=best_ns,
        worst_ns=max(best_ns, step_ns - round(removed[0] * exposed_ns + _FIXED_FRACS[0] * layers_ns)),
        floor_ns=floor_ns,
        basis=f"fewer, larger operators, which remove {low} to {percent(removed[1])} of the cost of dispatch and of "
        f"short operators{recurrent}",
        floor_assumes="dispatch at no cost",
        cold_floor_ns=max(1, step_ns - exposed_ns - layers_ns),
    )


def _compile_gain_on_cpu(evidence: Evidence, exposed_ns: int) -> Gain:
    """Return the gain of torch.compile on a CPU, which may be a loss: compiled code has a cost per call, too."""
    dispatch = union_of(*(evidence.ledger.spans[key] for key in DISPATCH_KEYS if key in evidence.ledger.spans))
    passes = forward_backward_spans(evidence.run)
    compiled_ns = exposed_ns
    if passes is not None:
        inside_ns = evidence.steps.typical_covered_ns(intersect(dispatch, passes))
        compiled_ns = round(exposed_ns * inside_ns / max(1, evidence.steps.typical_covered_ns(dispatch)))
    return evidence.gain_of_removing(
        min(exposed_ns, compiled_ns),
        "torch.compile of the model, which changes the dispatch cost of forward and backward by +60 to -80 %",
        "dispatch in the model at no cost",
        _COMPILED_ON_CPU,
    )


def _rewrites(evidence: Evidence) -> str:
    """Return the what-if that models the fix; none on a CPU, where the gain comes from the measured cost of calls."""
    if not evidence.on_gpu:
        return ""
    return evidence.applicable_rewrites("compile cuda_graphs") or evidence.applicable_rewrites("compile")


def _dynamic_compile_code(evidence: Evidence, function: str, reason: str) -> str:
    """Return code that compiles for dynamic sizes, or code that prints the reason if it is not a size."""
    if reason and not any(word in reason for word in ("size", "stride", "shape")):
        return "import torch\n\ntorch._logging.set_logs(recompiles=True)  # prints the reason for each recompilation"
    name = function.removeprefix("the backward pass of ")
    name = "" if name == _MODULE or name.startswith("forward ") else name.split(" ")[0]
    compiled = name if name.isidentifier() else evidence.names.model
    return (
        "import torch\n\n"
        "# instead of the present torch.compile call: one version for all sizes\n"
        f"{compiled} = torch.compile({compiled}, dynamic=True)"
    )
