"""A rule about the device itself: that it is simply busy."""

from __future__ import annotations

from gpulab.analysis.kernels.interior import interior
from gpulab.analysis.kernels.roofline import Utilisation, sized, utilisation
from gpulab.hardware.precision import Precision
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, Finding, figures
from gpulab.rules.engine.phrases import of_each_step, range_over_steps
from gpulab.wording import metric, percent

WORKING = ("matmul", "kernels", "communication", "compute")
TALKING_FRAC = 0.05  # less communication than this is not worth a word
BUSY_FRAC = 0.85  # busier than this, feeding and calling are not the limit
TOLD_FRAC = 0.8  # of the matrix kernels' time: with less the arithmetic of a step is not known
NEAR_PEAK_FRAC = 0.6  # of the arithmetic peak; the best products of real libraries reach 0.8
_PRECISIONS = {Precision.FLOAT32: "float32", Precision.TF32: "TF32", Precision.HALF: "half precision"}


def device_bound(evidence: Evidence) -> Finding | None:
    """The device works nearly all the time: nothing is wrong with feeding it.

    It informs and predicts nothing: only faster work (precision, fusion, a better algorithm) makes this shorter.
    Proof: kernels and collectives cover the step; what they are made of is told with it, and where sizes were
    recorded how much of the GPU's arithmetic they use (MFU). Confused with: a GPU that is busy copying what nothing
    hides, which is not counted here. What of it is communication that no kernel hides is said, as that is not compute.
    What to do: the findings beside this one tell what would make the work itself faster; without any, it is as fast
    as this device is.
    """
    busy, talking = evidence.ledger.share(*WORKING), evidence.ledger.share("communication")
    if busy < BUSY_FRAC:
        return None
    device = "GPU" if evidence.on_gpu else "CPU"
    what = f"The {device} computes {percent(busy)} {of_each_step(evidence)}"
    if talking >= TALKING_FRAC:
        what = (
            f"The {device} works {percent(busy)} {of_each_step(evidence)} ({percent(talking)} is exposed communication)"
        )
    used = _used(evidence)
    return Finding(
        claim=f"{what}: feeding it is not the limit.",
        evidence=(f"{range_over_steps(evidence, *WORKING)} of work.", *_made_of(evidence), *_arithmetic(used)),
        numbers=figures(
            busy_frac=busy,
            communication_frac=talking,
            mfu_frac=used.step_frac if used else None,
            kernel_frac=used.kernel_frac if used else None,
        ),
        advice=_faster_compute(evidence, used),
        confidence=CERTAIN,
    )


def _made_of(evidence: Evidence) -> tuple[str, ...]:
    if not evidence.on_gpu:
        return ()
    parts = (("matmul", "matrix products and attention"), ("kernels", "other kernels"))
    told = [
        f"{percent(evidence.ledger.share(key))} {words}" for key, words in parts if evidence.ledger.share(key) >= 0.005
    ]
    return (f"Of each step: {', '.join(told)}.",) if told else ()


def _used(evidence: Evidence) -> Utilisation | None:
    kernels = evidence.once(interior)
    if kernels is None:
        return None
    used = utilisation(kernels, evidence.step_ns, evidence.once(sized))
    return used if used is not None and used.told_frac >= TOLD_FRAC else None


def _arithmetic(used: Utilisation | None) -> tuple[str, ...]:
    if used is None:
        return ()
    return (
        f"{metric(used.flops, 'FLOP')} a step, mostly in {_PRECISIONS[used.precision]}: {percent(used.step_frac)} of "
        f"the {metric(used.peak, 'FLOP/s')} of this GPU ({used.spec.name}), which is its MFU; "
        f"{percent(used.kernel_frac)} while the matrix products run.",
    )


def _faster_compute(evidence: Evidence, used: Utilisation | None) -> str:
    if not evidence.on_gpu:
        return "To make it faster: bfloat16 where this CPU has it, torch.compile, a smaller model; or a GPU."
    if used is not None and used.step_frac >= NEAR_PEAK_FRAC:
        return (
            "This is close to what the GPU can do: a smaller model, narrower numbers or a larger GPU are what is left."
        )
    return "To make it faster: what the other findings name; beyond them torch.compile, a smaller model, a larger GPU."
