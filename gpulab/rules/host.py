"""Rules about the host: Python code and the cost of calling operators, while the device has nothing to do."""

from __future__ import annotations

from gpulab.analysis.frames import Frame
from gpulab.analysis.launches import Launching
from gpulab.analysis.ledger import DISPATCHING
from gpulab.rules.evidence import Evidence
from gpulab.rules.feeding import FULL_FRAC
from gpulab.rules.finding import CERTAIN, LIKELY, SUSPECT, Finding, Unjudged
from gpulab.rules.phrases import ms, of_a_step, of_each_step, percent, spread, who_waits

PYTHON_WORTH_FRAC = 0.05  # as for the loader: a twentieth of a step
DISPATCH_WORTH_FRAC = 0.20  # some dispatch is the price of eager mode; from a fifth on it is a cause
SMALL_PIECE_NS = 20_000  # median piece of work; calling one costs 5-12 us on the GPUs measured
MANY_PIECES = 50  # fewer calls than this in all interior steps are no loop to speak of
KNOWN_FRAC = 0.5  # a frame behind this much of the time is named as the cause


def host_python(seen: Evidence) -> Finding | Unjudged | None:
    """The loop's own Python code runs while the device has nothing to do.

    Proof: stretches of 0.2 ms and more in which the main thread is inside no PyTorch call and no DataLoader, with
    the device idle. The line is named from recorded Python frames, or from samples of the main thread. Confused
    with: the DataLoader (its time is its own part of the ledger) and the short Python stretches between operators
    (`dispatch_bound`). What to do: move the work into the Dataset, so that workers do it, or do it once before.
    """
    share = seen.ledger.share("python")
    if share < PYTHON_WORTH_FRAC:
        return None
    frame = seen.python_frame
    named = frame is not None and frame.frac >= KNOWN_FRAC
    if (doubt := _doubt(seen, share, named)) is not None:
        return doubt
    confidence, why = seen.confidence(CERTAIN if named else LIKELY)
    if frame is None and not why:
        confidence, why = SUSPECT, "what ran there was not recorded"
    where = f": {frame.name}" if frame is not None and named else " outside PyTorch"
    return Finding(
        rule="host_python",
        parts=("python",),
        claim=f"{who_waits(seen, share)} for Python code of the loop{where}.",
        evidence=(
            f"{of_a_step(seen, seen.ledger.median_ns('python'))} outside PyTorch and "
            f"DataLoader with the {'GPU' if seen.on_gpu else 'model'} idle ({spread(seen, 'python')}).",
            *_who(frame),
        ),
        numbers={"exposed_frac": share, "exposed_ns": float(seen.ledger.median_ns("python"))},
        fix=_into_the_dataset(frame if named else None),
        advice="Work that depends only on the sample belongs in the Dataset, where workers do it beside the model. "
        "What cannot move: vectorise it, or do it once before training.",
        gain=seen.bounded(
            seen.plain_ns(seen.ledger.median_ns("python")),
            "the exposed Python time, removed by 70 to 100 %",
            "even no such code",
        ),
        confidence=confidence,
        why_confidence=why,
        shown_by=seen.ledger.spans["python"],
        lesson="05_data_loading",
    )


def _doubt(seen: Evidence, share: float, named: bool) -> Unjudged | None:
    """Why the time outside PyTorch may have another cause than the loop's Python code, if it may."""
    if seen.feeding is not None and (seen.feeding.cores_frac or 0) >= FULL_FRAC:
        why = "all cores were busy, so the main thread may just have waited for one"
        fix = "profile with fewer workers, or fewer threads: torch.set_num_threads(1)"
    elif seen.steps.few and not named:
        why = "there are too few steps to tell a loop from its surroundings, and which Python code ran is not recorded"
        fix = "record more steps, or Python frames too: --level deep"
    else:
        return None
    return Unjudged(
        rule="host_python",
        about="Python code in the loop",
        why=f"{percent(share)} of the time is outside PyTorch, but {why}",
        fix=fix,
    )


def dispatch_bound(seen: Evidence) -> Finding | None:
    """The model is many small pieces of work, and calling them takes longer than doing them.

    Proof: the device is idle while the host is inside launch calls, operator dispatch or the short Python stretches
    between operators, and the pieces are small (median under 20 us) and many. Confused with: synchronisation and
    loading (parts of their own), and recording itself, which lengthens every call: what it adds to the step is
    taken off first, where that was measured. What to do: fewer, larger pieces: a larger batch, torch.compile, CUDA
    graphs.
    """
    exposed_ns = seen.without_recording(seen.ledger.median_ns(*DISPATCHING))
    share = min(1.0, exposed_ns / seen.step_ns)
    pieces = seen.launching
    if share < DISPATCH_WORTH_FRAC or pieces is None:
        return None
    if pieces.median_ns > SMALL_PIECE_NS or pieces.count < MANY_PIECES:
        return None
    confidence, why = seen.confidence(LIKELY if pieces.graphs else CERTAIN)
    traced_ns = seen.ledger.median_ns(*DISPATCHING)
    return Finding(
        rule="dispatch_bound",
        parts=DISPATCHING,
        claim=f"{_subject(seen, share)} while Python and PyTorch call {pieces.per_step:,} small "
        f"{pieces.unit}s (median {ms(pieces.median_ns)}).",
        evidence=(
            f"{of_a_step(seen, traced_ns)} goes to calling them ({spread(seen, *DISPATCHING)}).",
            *_less_recording(seen, exposed_ns),
            _pieces(pieces),
        ),
        numbers={
            "exposed_frac": share,
            "exposed_ns": float(exposed_ns),
            "per_step": float(pieces.per_step),
            "median_ns": float(pieces.median_ns),
        },
        fix=_fewer_pieces(seen.on_gpu),
        advice="A larger batch gives each call more to do; try it first where memory allows.",
        gain=seen.bounded(
            exposed_ns, "the cost of calls lessened by 30 to 80 %, as compilers do", "even free calling", (0.3, 0.8)
        ),
        confidence=confidence,
        why_confidence=why,
        shown_by=seen.ledger.spans["dispatch"],
        lesson="12_launch_fusion_graphs",
    )


def _subject(seen: Evidence, share: float) -> str:
    each = of_each_step(seen)
    return f"GPU idle {percent(share)} {each}" if seen.on_gpu else f"{percent(share)} {each} passes"


def _less_recording(seen: Evidence, exposed_ns: int) -> tuple[str, ...]:
    if seen.steps.plain_ns is None:
        return ("Recording makes calls longer; by how much was not measured here.",)
    return (f"Without what recording adds, that is {ms(exposed_ns)} of a {ms(seen.step_ns)} step.",)


def _pieces(pieces: Launching) -> str:
    call = "" if pieces.call_ns is None else f"; a launch call takes {ms(pieces.call_ns)}"
    return f"{percent(pieces.small_frac)} of the {pieces.unit}s are shorter than 10 us{call}."


def _fewer_pieces(on_gpu: bool) -> str:
    if on_gpu:
        return 'model = torch.compile(model, mode="reduce-overhead")  # one CUDA graph instead of many launches'
    return "model = torch.compile(model)  # fuses small operators; needs a C++ compiler"


def _who(frame: Frame | None) -> tuple[str, ...]:
    if frame is None:
        return ()
    how = "by recorded Python frames" if frame.by == "recorded" else f"in {frame.samples} samples of the main thread"
    return (f"{percent(frame.frac)} of that time is in {frame.name} ({how}).",)


def _into_the_dataset(frame: Frame | None) -> str:
    # A sampled frame is the user's own function; a recorded one may belong to a library or to what runs it all.
    name = _function(frame.name) if frame and frame.by == "sampled" else "preprocess"
    return (
        f"class Prepared(torch.utils.data.Dataset):  # does the work in the DataLoader's workers\n"
        f"    def __init__(self, data): self.data = data\n"
        f"    def __len__(self): return len(self.data)\n"
        f"    def __getitem__(self, i): return {name}(self.data[i])\n"
        f"loader = DataLoader(Prepared(data), ..., num_workers=2, persistent_workers=True)"
    )


def _function(frame: str) -> str:
    """The function's name in "name (file.py:12)"."""
    name = frame.split(" ")[0]
    return name if name.isidentifier() else "preprocess"
