"""Summary of a job: the summaries of its ranks, joined. `join` is associative and commutative, so a tree may do it.

Of a rank it keeps what differs between ranks: some hundred bytes of times, and the sampled collectives. Texts of
findings are kept once per rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from gpulab.fleet.rank_summary import FirstFinding, RankSummary, StepTimes


@dataclass(frozen=True)
class UnreadFile:
    """A file that could not be read: its path, the rank by its name (None: unknown), and the reason."""

    path: str
    rank: int | None
    reason: str


@dataclass(frozen=True)
class FindingExample:
    """The first finding of some ranks: what it says on the lowest of them, and the range of its gain over all."""

    rule: str
    claim: str
    of_rank: tuple[bool, int, int, str]  # sort key of the rank that the claim is about
    worst_speedup: float | None  # the smallest over the ranks
    best_speedup: float | None  # the largest


@dataclass(frozen=True)
class JobSummary:
    """Ranks by number, unread files by path, and an example of each finding by rule."""

    ranks: tuple[RankSummary, ...] = ()
    unread: tuple[UnreadFile, ...] = ()
    findings: tuple[FindingExample, ...] = ()


def job_of_rank(summary: RankSummary) -> JobSummary:
    """Return the summary of a job of which only this rank is known."""
    if summary.error:
        return JobSummary(unread=(UnreadFile(summary.path, summary.rank, summary.error),))
    finding = summary.finding
    examples: tuple[FindingExample, ...] = ()
    if finding is not None:
        examples = (
            FindingExample(finding.rule, finding.claim, summary.sort_key, finding.worst_speedup, finding.best_speedup),
        )
    return JobSummary(ranks=(_without_texts(summary),), findings=examples)


def _without_texts(summary: RankSummary) -> RankSummary:
    finding = summary.finding
    short = (
        FirstFinding(
            rule=finding.rule,
            claim="",
            confidence=finding.confidence,
            worst_speedup=finding.worst_speedup,
            best_speedup=finding.best_speedup,
        )
        if finding
        else None
    )
    return replace(summary, finding=short, verdict="", steps=StepTimes())


def join(one: JobSummary, other: JobSummary) -> JobSummary:
    """Return the summary of both parts of a job, whatever their order and their sizes."""
    examples = {example.rule: example for example in one.findings}
    for example in other.findings:
        first = examples.get(example.rule)
        examples[example.rule] = example if first is None else _joined_example(first, example)
    return JobSummary(
        ranks=tuple(sorted((*one.ranks, *other.ranks), key=lambda summary: summary.sort_key)),
        unread=tuple(sorted((*one.unread, *other.unread), key=lambda file: (file.path, file.reason))),
        findings=tuple(examples[rule] for rule in sorted(examples)),
    )


def _joined_example(one: FindingExample, other: FindingExample) -> FindingExample:
    worst = [value for value in (one.worst_speedup, other.worst_speedup) if value is not None]
    best = [value for value in (one.best_speedup, other.best_speedup) if value is not None]
    return replace(
        min(one, other, key=lambda example: example.of_rank),
        worst_speedup=min(worst, default=None),
        best_speedup=max(best, default=None),
    )


def join_all(parts: Iterable[JobSummary]) -> JobSummary:
    """Return the summary of all parts, joined two by two as a tree."""
    level = list(parts)
    while len(level) > 2:
        level = [reduce(join, level[n : n + 2]) for n in range(0, len(level), 2)]
    return reduce(join, level, JobSummary())


def join_ranks(*summaries: RankSummary) -> JobSummary:
    """Return the summary of some ranks."""
    return join_all(map(job_of_rank, summaries))
