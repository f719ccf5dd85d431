"""A rule about the link between host and GPU."""

from __future__ import annotations

from gpulab.analysis.copies.host_to_device import Transfers, transfers
from gpulab.analysis.machine.link import Link, link, practical_bytes_per_s
from gpulab.hardware.pcie import pinned_copy_bytes_per_s
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, figures
from gpulab.rules.engine.needs import Need
from gpulab.rules.engine.phrases import duration_in_step
from gpulab.wording import metric, percent

SLOW_FRAC = 0.7  # of what such links give large pinned copies; cards and boards differ by 10-15 %
LINK_WORTH_FRAC = 0.03  # of a step, in copies that nothing hides

LINK = Need(
    lambda evidence: practical_bytes_per_s(evidence.run) is not None,
    "its generation and its lanes were not read",
    "profile here on a machine with an NVIDIA GPU: a trace from elsewhere does not tell of it",
    real=True,
)

_FEWER_BYTES = """\
# until the link is mended: copy a quarter of the bytes, as whole numbers from 0 to 255
def packed(image):  # in the Dataset, of images between 0 and 1
    return (image * 255).round().to(torch.uint8)

def unpacked(images):  # in the loop
    return images.to("cuda", non_blocking=True).float().div_(255)"""


def slow_pcie_link(evidence: Evidence) -> Finding | None:
    """The PCIe link to the GPU is slower than GPU and slot can be together.

    Proof: under load it runs with fewer lanes or in an older mode than it could, and large pinned copies are slow.
    Confused with: a link that is lowered while the GPU idles, to save power, which is not looked at; a board that has
    so few lanes by design, whose maximum says so; virtual machines that report another link than they have: where
    copies are fast, nothing is wrong. What to do: seat the card anew, use another slot, look at the BIOS; until then
    copy fewer bytes.
    """
    moved, now = evidence.once(transfers), evidence.once(link)
    best = practical_bytes_per_s(evidence.run)
    if moved is None or best is None:
        return None
    rate = moved.pinned.large_rate_bytes_per_s if moved.pinned else None
    slow = rate is not None and rate < SLOW_FRAC * best
    reduced = now is not None and now.reduced
    if (rate is not None and not slow) or not (slow or reduced):
        return None
    exposed_ns, lost = _lost(moved, rate, now, best)
    share = evidence.step_share(exposed_ns)
    worth = slow and share >= LINK_WORTH_FRAC
    return Finding(
        parts=("copies",) if worth else (),
        claim=_claim(now, rate, best),
        evidence=_evidence(evidence, now, rate, best, exposed_ns),
        numbers=figures(best_bytes_per_s=best, exposed_ns=exposed_ns, rate_bytes_per_s=rate),
        fix=_FEWER_BYTES,
        advice="For whoever has the machine in hand: seat the card anew, use the slot next to the CPU, and look at "
        "the slot's width and generation in the BIOS.",
        gain=evidence.bounded(
            evidence.plain_ns(round(exposed_ns * lost)),
            "copies at the pace such links have, reached by 50 to 100 %",
            "even the best link",
            (0.5, 1.0),
            moved.pinned.spans if moved.pinned else evidence.ledger.spans["copies"],
        )
        if worth
        else None,
        confidence=LIKELY if slow and reduced else SUSPECT,
        why_confidence="" if slow and reduced else _doubt(slow),
        from_steps=False,
        shown_by=moved.pinned.spans if moved.pinned else evidence.ledger.spans["copies"],
        aside=not worth,
    )


def _lost(moved: Transfers, rate: float | None, now: Link | None, best: float) -> tuple[int, float]:
    """The copies that nothing hides, and the share of their time that a full link would save."""
    copies = [each for each in (moved.pinned, moved.pageable) if each]
    pace_now = rate or (pinned_copy_bytes_per_s(now.generation, now.width) if now else None) or best
    return sum(each.copying_ns for each in copies), max(0.0, 1 - pace_now / best)


def _claim(now: Link | None, rate: float | None, best: float) -> str:
    if now is not None and now.reduced:
        most = now.gpu.link_generation_max or now.generation, now.gpu.link_width_max or now.width
        return (
            f"The link to the GPU runs as PCIe {now.generation} with {now.width} lanes; it could be "
            f"PCIe {most[0]} with {most[1]}."
        )
    return f"Copies to the GPU reach {metric(rate, 'B/s')}, and such links {metric(best, 'B/s')}."


def _evidence(
    evidence: Evidence, now: Link | None, rate: float | None, best: float, exposed_ns: int
) -> tuple[str, ...]:
    told = [f"{duration_in_step(evidence, exposed_ns)} in copies that nothing hides."]
    if rate is not None:
        told.append(
            f"Large pinned copies reach {metric(rate, 'B/s')}, {percent(rate / best)} of what the full link gives."
        )
    if now is not None:
        told.append(f"Under load: generation {now.generation}, {now.width} lanes.")
    return tuple(told)


def _doubt(slow: bool) -> str:
    if slow:
        return "the link itself reports nothing wrong; other traffic may share its way"
    return "no large pinned copy shows how fast it is"
