"""A rule about a slow PCIe link between host and GPU."""

from __future__ import annotations

from gpulab.analysis.copies.host_to_device import Transfers, transfers
from gpulab.analysis.machine.link import PcieLink, best_link_bytes_per_s, pcie_link
from gpulab.hardware.pcie import pinned_copy_bytes_per_s
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, known_numbers
from gpulab.rules.engine.needs import Need
from gpulab.rules.engine.phrases import step_spends
from gpulab.wording import metric, percent

_SLOW_FRAC = 0.7  # of the usual rate of large pinned copies on such a link; machines differ by 10-15 %
_MIN_LINK_FRAC = 0.03  # of a step, in exposed copies

LINK = Need(
    "the PCIe generation and lane count (by %%gpuprofile on a machine with an NVIDIA GPU)",
    lambda evidence: best_link_bytes_per_s(evidence.run) is not None,
    "the PCIe generation and lane count were not read",
    "profile with %%gpuprofile on a machine with an NVIDIA GPU; imported traces do not contain GPU sensors",
    real_machine_only=True,
)

_FEWER_BYTES = """\
# until the link is fixed: copy a quarter of the bytes, as uint8
def to_uint8(image):  # in the Dataset, for images with values from 0 to 1
    return (image * 255).round().to(torch.uint8)

def to_float(images):  # in the loop
    return images.to("cuda", non_blocking=True).float().div_(255)"""


def slow_pcie_link(evidence: Evidence) -> Finding | None:
    """The PCIe link to the GPU is slower than the GPU and the slot allow.

    Proof: under load the link runs with fewer lanes or an older PCIe generation than possible, and large pinned copies
    are slow.

    Confused with: a link that is reduced to save power while the GPU is idle, which is ignored; a slot with fewer lanes
    by design, which its maximum shows; virtual machines that report a wrong link. If copies are fast, nothing is wrong.

    What to do: reseat the card, use another slot, check the BIOS; until then, copy fewer bytes.
    """
    copies, link_now = evidence.cached(transfers), evidence.cached(pcie_link)
    best = best_link_bytes_per_s(evidence.run)
    if copies is None or best is None:
        return None
    rate = copies.pinned.large_rate_bytes_per_s if copies.pinned else None
    is_slow = rate is not None and rate < _SLOW_FRAC * best
    is_reduced = link_now is not None and link_now.reduced
    if (rate is not None and not is_slow) or not (is_slow or is_reduced):
        return None
    exposed_ns, lost_frac = _copy_loss(copies, rate, link_now, best)
    share = evidence.step_share(exposed_ns)
    is_costly = is_slow and share >= _MIN_LINK_FRAC
    return Finding(
        ledger_parts=("copies",) if is_costly else (),
        claim=_claim(link_now, rate, best),
        evidence=_evidence(evidence, link_now, rate, best, exposed_ns),
        numbers=known_numbers(best_bytes_per_s=best, exposed_ns=exposed_ns, rate_bytes_per_s=rate),
        fix=_FEWER_BYTES,
        advice="Ask the administrator to reseat the card, to use the slot next to the CPU, and to check the slot's "
        "width and PCIe generation in the BIOS.",
        gain=evidence.gain_of_removing(
            evidence.unprofiled_ns(round(exposed_ns * lost_frac)),
            "copies at the usual speed of such a link, with 50 to 100 % of the saving",
            "a link at full speed",
            (0.5, 1.0),
            copies.pinned.spans if copies.pinned else evidence.ledger.spans["copies"],
        )
        if is_costly
        else None,
        confidence=LIKELY if is_slow and is_reduced else SUSPECT,
        confidence_reason="" if is_slow and is_reduced else _uncertainty(is_slow),
        from_steps=False,
        spans=copies.pinned.spans if copies.pinned else evidence.ledger.spans["copies"],
        informs_only=not is_costly,
    )


def _copy_loss(copies: Transfers, rate: float | None, now: PcieLink | None, best: float) -> tuple[int, float]:
    """Return the time of exposed copies, and the fraction of it that a full link would save."""
    both_kinds = [kind for kind in (copies.pinned, copies.pageable) if kind]
    rate_now = rate or (pinned_copy_bytes_per_s(now.generation, now.width) if now else None) or best
    return sum(kind.copying_ns for kind in both_kinds), max(0.0, 1 - rate_now / best)


def _claim(now: PcieLink | None, rate: float | None, best: float) -> str:
    if now is not None and now.reduced:
        possible = now.gpu.link_generation_max or now.generation, now.gpu.link_width_max or now.width
        return (
            f"The link to the GPU runs as PCIe {now.generation} x{now.width}; PCIe {possible[0]} x{possible[1]} "
            "is possible."
        )
    return f"Copies to the GPU reach {metric(rate, 'B/s')}; such links usually reach {metric(best, 'B/s')}."


def _evidence(
    evidence: Evidence, now: PcieLink | None, rate: float | None, best: float, exposed_ns: int
) -> tuple[str, ...]:
    sentences = [f"{step_spends(evidence, evidence.unprofiled_ns(exposed_ns))} in exposed copies."]
    if rate is not None:
        sentences.append(
            f"Large pinned copies reach {metric(rate, 'B/s')}, {percent(rate / best)} of the usual rate of a full link."
        )
    if now is not None:
        sentences.append(f"Under load the link runs as PCIe {now.generation} x{now.width}.")
    return tuple(sentences)


def _uncertainty(slow: bool) -> str:
    if slow:
        return "the link reports no reduction; other traffic may share it"
    return "no large pinned copy was recorded to measure its speed"
