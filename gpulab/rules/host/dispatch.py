"""Rules about calling operators: what it costs to start work, and functions that are compiled again and again."""

from __future__ import annotations

from gpulab.analysis.host.gc_and_compilation import compiling, overlap_ns, stalled
from gpulab.analysis.host.launches import Launching
from gpulab.analysis.steps.ledger import DISPATCHING
from gpulab.intervals import merged
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, figures
from gpulab.rules.engine.phrases import duration_in_step, of_each_step, range_over_steps
from gpulab.rules.host.garbage_collection import of_what, per_step_gain, share_of
from gpulab.wording import article, duration, percent

DISPATCH_WORTH_FRAC = 0.15  # some dispatch is the price of eager mode; from about a sixth on it is a cause
SMALL_PIECE_NS = 20_000  # median piece of work; calling one costs 5-12 us on the GPUs measured
MANY_PIECES = 50  # fewer calls than this in all interior steps are no loop to speak of
COMPILING_WORTH_FRAC = 0.05
MODULE = "a module"  # as recorded where a model was compiled as a whole
AGAIN = 2  # one late compilation may be the last, smaller batch of a pass


def dispatch_bound(evidence: Evidence) -> Finding | None:
    """The model is many small pieces of work, and calling them takes longer than doing them.

    Proof: the device is idle while the host is inside launch calls, operator dispatch or the short Python stretches
    between operators, and the pieces are small (median under 20 us) and many. Confused with: synchronisation and
    loading (parts of their own), collections and compilations, and recording itself, which lengthens every call: what
    these add is taken off first, where that was measured. What to do: fewer, larger pieces: a larger batch,
    torch.compile, CUDA graphs.
    """
    stalled_ns = overlap_ns(evidence.ledger, stalled(evidence.run), *DISPATCHING)
    exposed_ns = evidence.without_recording(max(0, evidence.ledger.median_ns(*DISPATCHING) - stalled_ns))
    share = min(1.0, exposed_ns / evidence.step_ns)
    pieces = evidence.launching
    if share < DISPATCH_WORTH_FRAC or pieces is None:
        return None
    if pieces.median_ns > SMALL_PIECE_NS or pieces.count < MANY_PIECES:
        return None
    traced_ns = evidence.ledger.median_ns(*DISPATCHING)
    return Finding(
        parts=DISPATCHING,
        claim=f"{_subject(evidence, share)} while Python and PyTorch call {pieces.per_step:,} small "
        f"{pieces.unit}s (median {duration(pieces.median_ns)}).",
        evidence=(
            f"{duration_in_step(evidence, traced_ns)} goes to calling them ({range_over_steps(evidence, *DISPATCHING)}).",
            *_less_recording(evidence, exposed_ns),
            _pieces(pieces),
        ),
        numbers=figures(
            exposed_frac=share, exposed_ns=exposed_ns, per_step=pieces.per_step, median_ns=pieces.median_ns
        ),
        fix=_fewer_pieces(evidence),
        advice="A larger batch gives each call more to do; try it first where memory allows.",
        gain=_compiled(evidence, exposed_ns),
        rewrites=_as_typed(evidence),
        confidence=LIKELY if pieces.graphs else CERTAIN,
        shown_by=evidence.ledger.spans["dispatch"],
    )


def recompilation(evidence: Evidence) -> Finding | None:
    """torch.compile compiles the same function again, long after the loop has begun.

    Proof: compilations that PyTorch itself recorded, in the steps after the third, at least two. What it compiled
    for does not hold any more: mostly a size that is another in every batch. Confused with: the first compilations,
    which happen once (`slow_first_step`), and one more for the smaller last batch. What to do: compile for any size
    (dynamic=True), or give all batches the same size by padding.
    """
    told = evidence.once(compiling)
    if told is None or told.count < AGAIN:
        return None
    share = share_of(told)
    if share < COMPILING_WORTH_FRAC:
        return None
    what, _ = told.whats[0]
    function, _, reason = what.partition(", again: ")
    return Finding(
        parts=("python",),
        claim=f"{percent(share)} {of_what(evidence, told)} goes to compiling "
        f"{function.replace(MODULE, 'the model')} again and again.",
        evidence=(
            f"{told.count} compilations in {told.hit} of {told.steps} steps after the third, "
            f"{duration(told.mean_ns)} of an average step; the longest takes {duration(told.longest_ns)}.",
            *((f"What PyTorch says of the latest kind: {reason}.",) if reason else ()),
        ),
        numbers=figures(exposed_frac=share, exposed_ns=told.per_step_ns, compilations=told.count),
        fix=_for_any_size(evidence, function, reason),
        advice='TORCH_LOGS="recompiles" in the environment names the cause of each. After eight versions of a function '
        "PyTorch stops compiling it and runs it uncompiled.",
        gain=per_step_gain(evidence, told, "the compilations, removed by 80 to 100 %", "even no compiling", (0.8, 1.0)),
        confidence=CERTAIN,
        shown_by=told.spans,
    )


def _subject(evidence: Evidence, share: float) -> str:
    each = of_each_step(evidence)
    return f"GPU idle {percent(share)} {each}" if evidence.on_gpu else f"{percent(share)} {each} passes"


def _less_recording(evidence: Evidence, exposed_ns: int) -> tuple[str, ...]:
    if evidence.run.source.how == "virtual":
        return ()  # nothing was recorded
    if evidence.steps.plain_ns is None:
        return ("Recording makes calls longer; by how much was not measured here.",)
    return (
        f"Without what recording adds, that is {duration(exposed_ns)} of {article(duration(evidence.step_ns))} step.",
    )


def _pieces(pieces: Launching) -> str:
    call = "" if pieces.call_ns is None else f"; a launch call takes {duration(pieces.call_ns)}"
    return f"{percent(pieces.small_frac)} of the {pieces.unit}s are shorter than 10 us{call}."


def _compiled(evidence: Evidence, exposed_ns: int) -> Gain:
    spans = merged(*(evidence.ledger.spans[key] for key in DISPATCHING if key in evidence.ledger.spans))
    basis = "the cost of calls lessened by 30 to 80 %, as compilers do"
    return evidence.predicted(
        _as_typed(evidence), evidence.bounded(exposed_ns, basis, "even free calling", (0.3, 0.8), spans)
    )


def _as_typed(evidence: Evidence) -> str:
    """What the fix is called as a what-if; on a CPU its gain is by what calls cost, as measured there."""
    if not evidence.on_gpu:
        return ""
    return evidence.typed("compile cuda_graphs") or evidence.typed("compile")


def _fewer_pieces(evidence: Evidence) -> str:
    model = evidence.names.model
    if evidence.on_gpu:
        return (
            "import torch\n\n"
            f'{model} = torch.compile({model}, mode="reduce-overhead")  # one CUDA graph instead of many launches'
        )
    return f"import torch\n\n{model} = torch.compile({model})  # fuses small operators; needs a C++ compiler"


def _for_any_size(evidence: Evidence, function: str, reason: str) -> str:
    """Compile for sizes that change; where something else changes, sizes are not the answer."""
    if reason and not any(word in reason for word in ("size", "stride", "shape")):
        return "import torch\n\ntorch._logging.set_logs(recompiles=True)  # prints what changed, at each compilation"
    name = function.removeprefix("the backward pass of ")
    name = "" if name == MODULE or name.startswith("forward ") else name.split(" ")[0]
    compiled = name if name.isidentifier() else evidence.names.model
    return (
        "import torch\n\n"
        "# where it is compiled now: one version for all sizes\n"
        f"{compiled} = torch.compile({compiled}, dynamic=True)"
    )
