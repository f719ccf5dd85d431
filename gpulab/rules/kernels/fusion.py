"""Rules about work that moves more data than it computes: chains of small steps, memory-bound and scattered kernels."""

from __future__ import annotations

from gpulab.analysis.kernels.elementwise_chains import Chains, chains_on_cpu, chains_on_gpu
from gpulab.analysis.kernels.families import is_scattered
from gpulab.analysis.kernels.fusion_patterns import Formula
from gpulab.analysis.kernels.interior import interior, short
from gpulab.analysis.kernels.roofline import sized, traffic
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, Gain, figures
from gpulab.rules.engine.phrases import duration_in_step, of_each_step
from gpulab.rules.kernels.small_batch import small_batch
from gpulab.rules.kernels.speedup import faster_work, kernel_group
from gpulab.wording import count, duration, metric, number, percent

# A fifth: in any eager model some activations and additions follow one another, and a compiler is a large tool.
CHAINS_WORTH_FRAC = 0.20
KNOWN_WORTH_FRAC = 0.10  # where PyTorch has the very function in one piece, a tenth is worth the one line
KEPT_WORTH = 0.7  # so much of all that could be saved is not, at worst: the backward pass needs what was in between

NEAR_PEAK_FRAC = 0.6  # of the memory's peak; well-written streaming kernels reach 0.75 to 0.92
MEMORY_WORTH_FRAC = 0.25
SCATTERED_WORTH_FRAC = 0.10


def unfused_elementwise(evidence: Evidence) -> Finding | None:
    """Chains of elementwise work read and write the same tensor over and over, a pass of memory for each small step.

    Proof: three and more elementwise kernels (on a CPU: operators) on equally many elements in a row, or a softmax
    between two matrix products, by a fifth of the step. Confused with: a model that a compiler has fused already
    (Triton kernels do not count); pairs, which every model has; the optimizer (`unfused_optimizer`); many tiny
    operators, whose cost is their call (`dispatch_bound`); the rounds of a loop over a batch, each of which works on
    data of its own: the same operators eight times over are chains of one round each, and where one round is too
    little for the GPU, `small_batch` comes first. What to do: PyTorch's own function where it has one for the whole
    chain, else torch.compile.
    """
    found = _chains(evidence)
    if found is None or (found.repeated and small_batch(evidence) is not None):
        return None
    share = evidence.step_share(found.cost_ns)
    known_ns = sum(cost_ns for _, cost_ns in found.formulas)
    known = known_ns >= KNOWN_WORTH_FRAC * (evidence.steps.traced_ns or 1)
    if share < CHAINS_WORTH_FRAC and not (known and share >= KNOWN_WORTH_FRAC):
        return None
    gain = _fewer_passes(evidence, found)
    if gain is None:
        return None
    guess = "" if found.sized or known else "sizes were not recorded, so that they work on the same tensors is a guess"
    return Finding(
        parts=("kernels",) if evidence.on_gpu else ("compute",),
        claim=f"{percent(share)} {of_each_step(evidence)} goes to {_what(found)}: each {found.unit} reads and writes "
        "the same tensor again.",
        evidence=(
            f"{duration_in_step(evidence, found.cost_ns)} in {count(found.count, 'chain')} of "
            f"{number(found.pieces, 2)} "
            f"elementwise {found.unit}s on average.",
            *(f"{duration(cost)} of it looks like {op.value} written by hand." for op, cost in found.formulas[:3]),
        ),
        numbers=figures(share_frac=share, cost_ns=found.cost_ns, chains=found.count, pieces=found.pieces),
        fix=_fused(evidence, found),
        advice=_advice(evidence, found),
        gain=gain,
        confidence=SUSPECT if guess else LIKELY,
        why_confidence=guess,
        shown_by=found.spans,
    )


def _fewer_passes(evidence: Evidence, found: Chains) -> Gain | None:
    spared = (found.pieces - 1) / found.pieces if found.pieces > 1 else 0.5
    if any(each is Formula.ATTENTION for each, _ in found.formulas[:1]):
        spared = max(spared, 0.8)  # fused attention never writes the scores at all
    return faster_work(
        evidence,
        found.cost_ns,
        (1 - spared * (1 - KEPT_WORTH), 1 - 0.95 * spared, 1 - spared),
        f"{number(found.pieces, 2)} passes over memory made one, by 30 to 95 %",
        "even one pass for each chain",
        spans=found.spans,
    )


def _chains(evidence: Evidence) -> Chains | None:
    if not evidence.on_gpu:
        return evidence.once(chains_on_cpu)
    kernels = evidence.once(interior)
    return chains_on_gpu(kernels) if kernels is not None else None


def _first(found: Chains) -> Formula | None:
    """What most of the chains compute, where that is known of a third of them."""
    if found.formulas and found.formulas[0][1] >= found.cost_ns / 3:
        return found.formulas[0][0]
    return None


def _what(found: Chains) -> str:
    first = _first(found)
    return f"{first.value} in many small steps" if first else f"chains of elementwise {found.unit}s"


# PyTorch's own function for a formula, as a definition to paste in place of the one written by hand.
_PIECES = {
    Formula.ATTENTION: "def attention(query, key, value):  # for softmax(query @ key.T * scale) @ value\n"
    "    return F.scaled_dot_product_attention(query, key, value)",
    Formula.GELU_TANH: 'def gelu(x):  # for 0.5 * x * (1 + tanh(...))\n    return F.gelu(x, approximate="tanh")',
    Formula.GELU: "def gelu(x):  # for 0.5 * x * (1 + erf(x / sqrt(2)))\n    return F.gelu(x)",
    Formula.SILU: "def silu(x):  # for x * sigmoid(x)\n    return F.silu(x)",
    Formula.LAYER_NORM: "def normalised(x, weight=None, bias=None):  # for (x - mean) / sqrt(variance + eps)\n"
    "    return F.layer_norm(x, x.shape[-1:], weight, bias)",
    Formula.RMS_NORM: "def normalised(x, weight=None):  # for x * rsqrt(mean(x ** 2) + eps)\n"
    "    return F.rms_norm(x, x.shape[-1:], weight)",
    Formula.SOFTMAX: "def softmax(x):  # for exp(x) / exp(x).sum(-1, keepdim=True)\n    return F.softmax(x, dim=-1)",
}


def _fused(evidence: Evidence, found: Chains) -> str:
    pieces = [_PIECES[each] for each, cost_ns in found.formulas if cost_ns >= 0.1 * found.cost_ns]
    told = sum(cost_ns for _, cost_ns in found.formulas)
    if pieces and told >= found.cost_ns / 3:
        return "import torch.nn.functional as F\n\n\n" + "\n\n\n".join(pieces)
    if not evidence.on_gpu and evidence.run.facts.get("compiler") == "none":
        return ""
    return f"import torch\n\n{evidence.names.model} = torch.compile({evidence.names.model})"


def _advice(evidence: Evidence, found: Chains) -> str:
    if not evidence.on_gpu and evidence.run.facts.get("compiler") == "none":
        return "torch.compile would make one loop of each chain; it needs a C++ compiler, and there is none here."
    if found.compiled:
        return "Part of the model is compiled already: compile the part that holds these chains as well."
    return "torch.compile makes one pass of most chains by itself; the first call then takes up to minutes."


def memory_bound(evidence: Evidence) -> Finding | None:
    """Elementwise kernels move data as fast as the GPU's memory can: faster arithmetic will not help them.

    Proof: what an operator must read and write at least, by the sizes and types of its inputs, over the time of its
    kernels, comes to 60 % and more of the memory's peak rate. Confused with: small tensors, which live in the cache
    (rates beyond the peak are left out); operators whose sizes were not recorded (nothing is said); chains that could
    be one kernel (`unfused_elementwise`), which explains this. What to do: move less: smaller types, fewer passes,
    recompute less.
    """
    kernels = evidence.once(interior)
    found = traffic(kernels, evidence.once(sized), NEAR_PEAK_FRAC) if kernels is not None else None
    if kernels is None or found is None:
        return None
    share = evidence.step_share(found.cost_ns)
    if share < MEMORY_WORTH_FRAC:
        return None
    # Half the bytes take half the time; numbers that are narrow already are moved less often only by fewer passes.
    left = (0.95, 0.5, 0.45) if found.float32 else (0.95, 0.7, 0.5)
    basis = "the same work with 5 to 50 % less traffic"
    gain = faster_work(evidence, found.cost_ns, left, basis, "even half the traffic", spans=found.spans)
    if gain is None:
        return None
    rate = found.rate_bytes_per_s
    return Finding(
        parts=("kernels",),
        claim=f"{percent(share)} {of_each_step(evidence)} goes to kernels that move data at "
        f"{percent(rate / found.spec.memory_bytes_per_s)} of what the GPU's memory can: only moving less helps them.",
        evidence=(
            f"{duration_in_step(evidence, found.cost_ns)} at {metric(rate, 'B/s')}; {found.spec.name} does "
            f"{metric(found.spec.memory_bytes_per_s, 'B/s')} at most ({found.spec.peaks_source}).",
            "By operator: " + ", ".join(f"{op} {duration(cost_ns)}" for op, cost_ns in found.ops[:3]) + " a step.",
        ),
        numbers=figures(share_frac=share, cost_ns=found.cost_ns, rate_bytes_per_s=rate),
        fix=f"import torch\n\n{evidence.names.model} = torch.compile({evidence.names.model})  # fewer passes over "
        "memory",
        advice="Half the bytes: bfloat16 in place of float32." if found.float32 else "",
        gain=gain,
        confidence=LIKELY,
        shown_by=found.spans,
    )


def gather_scatter(evidence: Evidence) -> Finding | None:
    """Kernels that follow an index (gather, scatter, embedding tables) may read memory in pieces far too small.

    Proof: there is none in a trace. What can be said is that much time goes to such kernels; whether their reads are
    scattered, counters tell (Nsight Compute: sectors per request). Confused with: latency, atomics, a large table
    that simply must be read. What to do: measure; sort the indices, keep rows contiguous, gather once.
    """
    scattered = kernel_group(evidence, is_scattered, SCATTERED_WORTH_FRAC)
    if scattered is None:
        return None
    name = short(scattered.largest)
    return Finding(
        parts=("kernels",),
        claim=f"{percent(scattered.share)} {of_each_step(evidence)} goes to kernels that follow an index ({name}); if "
        "their reads are scattered, most of each read is thrown away.",
        evidence=(
            f"{duration_in_step(evidence, scattered.cost_ns)} in gather, scatter and embedding kernels.",
            "A trace does not tell how they read: this is a suspicion until counters are asked.",
        ),
        numbers=figures(share_frac=scattered.share, cost_ns=scattered.cost_ns),
        advice="Count before you change anything, in a terminal: ncu --section MemoryWorkloadAnalysis "
        f"-k regex:{name} python train.py. More than 4 sectors a request, of 4-byte loads, is scattered: sort the "
        "indices, or call .contiguous() once before repeated use.",
        confidence=SUSPECT,
        why_confidence="names of kernels do not tell how they read",
        from_steps=False,
        shown_by=scattered.kernels.spans(scattered.mask),
    )
