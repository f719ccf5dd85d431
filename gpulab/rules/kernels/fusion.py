"""Rules about work that moves more data than it computes: elementwise chains, memory-bound kernels, gather/scatter."""

from __future__ import annotations

from gpulab.analysis.kernels.elementwise_chains import Attention, Chains, chains_on_cpu, chains_on_gpu
from gpulab.analysis.kernels.families import is_gather_scatter
from gpulab.analysis.kernels.fusion_patterns import FusedFunction
from gpulab.analysis.kernels.interior_kernels import interior_kernels, short_kernel_name
from gpulab.analysis.kernels.roofline import memory_bound_work, operator_work_of_run
from gpulab.analysis.steps.forward_backward import forward_backward_spans
from gpulab.rules.engine.compile_code import compile_code
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import per_step, step_or_recording, step_spends
from gpulab.rules.kernels.small_batch import small_batch
from gpulab.rules.kernels.speedup import faster_kernels_gain, kernel_group
from gpulab.wording import count, duration, metric, number, percent

# A fifth of a step: every eager model has some consecutive activations and additions, and a compiler is a large change.
_MIN_CHAIN_FRAC = 0.20
_MIN_FORMULA_FRAC = 0.10  # if PyTorch has the whole formula as one function, the fix is one line
_NOT_SAVED_FRAC = 0.7  # of the possible saving, at worst: the backward pass needs the intermediate results

# What a fused attention takes, relative to the matrix products that it replaces, at worst, at best and at the bound.
# 0.65 was measured on an H100 (forward and backward pass, bfloat16, heads of 64, 2,048 tokens). At worst: its backward
# pass computes one product again, and it reaches half the speed of cuBLAS.
_ATTENTION_OF_PRODUCTS = (2.0, 0.5, 0.25)
_BACKWARD_TIMES = 3.0  # forward and backward pass together, relative to the forward pass

_FEWER_BYTES = "bfloat16 instead of float32 halves the bytes."
_NEAR_PEAK_FRAC = 0.6  # of peak memory bandwidth; well-written streaming kernels reach 0.75 to 0.92
_MIN_MEMORY_BOUND_FRAC = 0.25
_MIN_GATHER_SCATTER_FRAC = 0.10
_GUESS = "sizes were not recorded, so it is a guess that these operators work on the same tensors"


def unfused_elementwise(evidence: Evidence) -> Finding | None:
    """Chains of elementwise operators read and write the same tensor repeatedly: one pass over memory per operator.

    Proof: at least three elementwise kernels (on a CPU: operators) in a row on equally many elements, or a softmax
    between two matrix products, in at least a fifth of the step.

    Confused with: a model that a compiler has already fused (Triton kernels do not count); pairs, which every model
    has; the optimizer (`unfused_optimizer`); many tiny operators, whose cost is dispatch (`dispatch_bound`); a loop
    over a batch, where each iteration works on its own data: the same operators eight times in a row are eight chains,
    and if one iteration is too small for the GPU, `small_batch` comes first.

    What to do: use PyTorch's own function if there is one for the whole chain, else torch.compile.
    """
    chains = _find_chains(evidence)
    if chains is None or (chains.repeated and small_batch(evidence) is not None):
        return None
    share = evidence.step_share(chains.cost_ns)
    known_ns = sum(cost_ns for _, cost_ns in chains.functions)
    least = _MIN_FORMULA_FRAC / _with_backward(evidence, known_ns)
    formula_is_known = known_ns >= least * (evidence.steps.traced_ns or 1)
    if share < _MIN_CHAIN_FRAC and not (formula_is_known and share >= least):
        return None
    gain = _fusion_gain(evidence, chains)
    if gain is None:
        return None
    guess = "" if chains.sized or formula_is_known else _GUESS
    return Finding(
        ledger_parts=("kernels",) if evidence.on_gpu else ("compute",),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to {_chain_description(chains)}: each "
        f"{chains.unit} reads and writes the same tensor again.",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(chains.cost_ns))} in {count(chains.count, 'chain')} of "
            f"{number(chains.mean_length, 2)} elementwise {chains.unit}s on average.",
            *(
                f"{duration(cost)} of it looks like {op.value} implemented by hand."
                for op, cost in chains.functions[:3]
            ),
        ),
        numbers=known_numbers(share_frac=share, cost_ns=chains.cost_ns, chains=chains.count, pieces=chains.mean_length),
        fix=_fused_code(evidence, chains),
        advice=_advice(evidence, chains),
        gain=gain,
        confidence=SUSPECT if guess else LIKELY,
        confidence_reason=guess,
        spans=chains.spans,
    )


def _fusion_gain(evidence: Evidence, chains: Chains) -> Gain | None:
    saved_frac = (chains.mean_length - 1) / chains.mean_length if chains.mean_length > 1 else 0.5
    if chains.attention is not None and _main_formula(chains) is FusedFunction.ATTENTION:
        return _attention_gain(evidence, chains.cost_ns, chains.attention)
    if any(each is FusedFunction.ATTENTION for each, _ in chains.functions[:1]):
        saved_frac = max(saved_frac, 0.8)  # fused attention never writes the scores at all
        saved_frac_at_best = saved_frac * _with_backward(evidence, chains.cost_ns)
    else:
        saved_frac_at_best = saved_frac
    return faster_kernels_gain(
        evidence,
        chains.cost_ns,
        (1 - saved_frac * (1 - _NOT_SAVED_FRAC), 1 - 0.95 * saved_frac_at_best, 1 - saved_frac_at_best),
        f"fusing {number(chains.mean_length, 2)} passes over memory into one, with 30 to 95 % of the saving",
        "one pass over memory per chain",
        spans=chains.spans,
    )


def _attention_gain(evidence: Evidence, chains_ns: int, attention: Attention) -> Gain | None:
    """Return the gain of fused attention on a GPU: it neither writes the scores nor reads them in its products."""
    cost_ns = chains_ns + attention.products_ns
    worst, best, bound = (min(1.0, frac * attention.products_ns / cost_ns) for frac in _ATTENTION_OF_PRODUCTS)
    return faster_kernels_gain(
        evidence,
        cost_ns,
        (worst, best, bound),
        "a fused attention takes 0.5 to 2 times as long as the matrix products that it replaces",
        "attention in a quarter of the time of its matrix products",
        spans=attention.spans,
        host_spans=attention.host_spans,
    )


def _with_backward(evidence: Evidence, cost_ns: int) -> float:
    """Return the time of a formula in both passes, relative to the time found: on a CPU only the forward pass is."""
    passes = None if evidence.on_gpu else forward_backward_spans(evidence.run)
    if passes is None:
        return 1.0
    return max(1.0, min(_BACKWARD_TIMES, evidence.steps.typical_covered_ns(passes) / max(1, cost_ns)))


def _find_chains(evidence: Evidence) -> Chains | None:
    if not evidence.on_gpu:
        return evidence.cached(chains_on_cpu)
    kernels = evidence.cached(interior_kernels)
    return chains_on_gpu(kernels) if kernels is not None else None


def _main_formula(chains: Chains) -> FusedFunction | None:
    """Return the formula that most chains compute, if that is known for a third of their time."""
    if chains.functions and chains.functions[0][1] >= chains.cost_ns / 3:
        return chains.functions[0][0]
    return None


def _chain_description(chains: Chains) -> str:
    formula = _main_formula(chains)
    return f"{formula.value} as separate {chains.unit}s" if formula else f"chains of elementwise {chains.unit}s"


# PyTorch's own function for each formula, as a definition that replaces the one written by hand.
_FUSED_FUNCTIONS = {
    FusedFunction.ATTENTION: "def attention(query, key, value):  # for softmax(query @ key.T * scale) @ value\n"
    "    return F.scaled_dot_product_attention(query, key, value)",
    FusedFunction.GELU_TANH: 'def gelu(x):  # for 0.5 * x * (1 + tanh(...))\n    return F.gelu(x, approximate="tanh")',
    FusedFunction.GELU: "def gelu(x):  # for 0.5 * x * (1 + erf(x / sqrt(2)))\n    return F.gelu(x)",
    FusedFunction.SILU: "def silu(x):  # for x * sigmoid(x)\n    return F.silu(x)",
    FusedFunction.LAYER_NORM: "def layer_norm(x, weight=None, bias=None):  # for (x - mean) / sqrt(variance + eps)\n"
    "    return F.layer_norm(x, x.shape[-1:], weight, bias)",
    FusedFunction.RMS_NORM: "def rms_norm(x, weight=None):  # for x * rsqrt(mean(x ** 2) + eps)\n"
    "    return F.rms_norm(x, x.shape[-1:], weight)",
    FusedFunction.SOFTMAX: "def softmax(x):  # for exp(x) / exp(x).sum(-1, keepdim=True)\n    return F.softmax(x, "
    "dim=-1)",
}


def _fused_code(evidence: Evidence, chains: Chains) -> str:
    functions = [_FUSED_FUNCTIONS[each] for each, cost_ns in chains.functions if cost_ns >= 0.1 * chains.cost_ns]
    known_ns = sum(cost_ns for _, cost_ns in chains.functions)
    if functions and known_ns >= chains.cost_ns / 3:
        return "import torch.nn.functional as F\n\n\n" + "\n\n\n".join(functions)
    if not evidence.on_gpu and evidence.run.facts.get("compiler") == "none":
        return ""
    return compile_code(evidence)


def _advice(evidence: Evidence, chains: Chains) -> str:
    if not evidence.on_gpu and evidence.run.facts.get("compiler") == "none":
        return (
            "torch.compile would fuse each chain into one loop, but it needs a C++ compiler, and none was found here."
        )
    if chains.compiled:
        return "Part of the model is already compiled: also compile the part with these chains."
    return "torch.compile fuses most chains automatically; the first call then takes up to minutes."


def memory_bound(evidence: Evidence) -> Finding | None:
    """Elementwise kernels move data at the speed of the GPU's memory: faster arithmetic does not help them.

    Proof: the bytes that an operator must read and write at least, from the sizes and dtypes of its inputs, divided by
    the time of its kernels, reach at least 60 % of peak memory bandwidth.

    Confused with: small tensors, which stay in the cache (rates above the peak are excluded); operators without
    recorded sizes, which are not judged; chains that could be one kernel (`unfused_elementwise`), which explain this
    finding.

    What to do: move fewer bytes: smaller dtypes, fewer passes, less recomputation.
    """
    kernels = evidence.cached(interior_kernels)
    if kernels is None:
        return None
    slow_traffic = memory_bound_work(kernels, evidence.cached(operator_work_of_run), _NEAR_PEAK_FRAC)
    if slow_traffic is None:
        return None
    share = evidence.step_share(slow_traffic.cost_ns)
    if share < _MIN_MEMORY_BOUND_FRAC:
        return None
    # Half the bytes take half the time; for data that is already 16-bit, only fewer passes help.
    remaining = (0.95, 0.5, 0.45) if slow_traffic.float32 else (0.95, 0.7, 0.5)
    basis = "the same work with 5 to 50 % less memory traffic"
    gain = faster_kernels_gain(
        evidence, slow_traffic.cost_ns, remaining, basis, "half the memory traffic", spans=slow_traffic.spans
    )
    if gain is None:
        return None
    rate = slow_traffic.rate_bytes_per_s
    return Finding(
        ledger_parts=("kernels",),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to memory-bound kernels, at "
        f"{percent(rate / slow_traffic.spec.memory_bytes_per_s)} of peak memory bandwidth.",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(slow_traffic.cost_ns))} "
            f"in these kernels, at {metric(rate, 'B/s')}; the peak of "
            f"{slow_traffic.spec.name} is "
            f"{metric(slow_traffic.spec.memory_bytes_per_s, 'B/s')} ({slow_traffic.spec.peaks_source}).",
            "By operator: "
            + ", ".join(f"{op} {duration(cost_ns)}" for op, cost_ns in slow_traffic.ops[:3])
            + f" {per_step(evidence)}.",
        ),
        numbers=known_numbers(share_frac=share, cost_ns=slow_traffic.cost_ns, rate_bytes_per_s=rate),
        fix=compile_code(evidence, "fewer passes over memory"),
        advice=_FEWER_BYTES if slow_traffic.float32 else "Use fewer passes over the same tensors.",
        gain=gain,
        confidence=LIKELY,
        spans=slow_traffic.spans,
    )


def gather_scatter(evidence: Evidence) -> Finding | None:
    """Gather/scatter kernels (indexing, embedding tables) may read memory in very small segments.

    Proof: a trace cannot prove it. It shows that much time goes to such kernels; whether their reads are scattered,
    only hardware counters show (Nsight Compute: sectors per request).

    Confused with: latency; atomics; a large table that must be read in any case.

    What to do: measure first; then sort the indices, keep rows contiguous, and gather once.
    """
    group = kernel_group(evidence, is_gather_scatter, _MIN_GATHER_SCATTER_FRAC)
    if group is None:
        return None
    name = short_kernel_name(group.largest)
    return Finding(
        ledger_parts=("kernels",),
        claim=f"{percent(group.step_frac)} {step_or_recording(evidence)} goes to gather/scatter kernels ({name}), "
        "which "
        "waste most of the memory bandwidth if the indices are scattered.",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(group.cost_ns))} in gather, scatter and embedding kernels.",
            "A trace does not show how these kernels access memory; hardware counters do.",
        ),
        numbers=known_numbers(share_frac=group.step_frac, cost_ns=group.cost_ns),
        advice="Measure before you change anything, in a terminal: ncu --section MemoryWorkloadAnalysis "
        f"-k regex:{name} python train.py. With 4-byte loads, more than 4 sectors per request means "
        "scattered access: sort the indices, or call .contiguous() once before repeated use.",
        confidence=SUSPECT,
        confidence_reason="kernel names do not show the access pattern",
        from_steps=False,
        spans=group.kernels.spans(group.mask),
    )
