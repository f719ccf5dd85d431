"""All changes of a job: those of its communication, and those of a rank, made on all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpulab.replay.job.communication import (
    balance,
    bandwidth,
    bucket_refusal_reason,
    compress,
    compress_refusal_reason,
    first_arrival,
    larger_buckets,
    no_communication,
    no_sync,
    no_sync_refusal_reason,
    scaled_best_case,
    scaled_to_ranks,
    straggler_refusal_reason,
    without_straggler,
)
from gpulab.replay.job.job_rewrite import JobRewrite, of_all_ranks
from gpulab.replay.job.overlap import gradients_in_no_time, overlap_of_job, overlap_of_job_refusal_reason
from gpulab.replay.rewrite import Draw, Value
from gpulab.replay.rewrites.catalogue import REWRITES
from gpulab.replay.rewrites.ranks.communication import parse_mib

MAX_RANKS = 100_000


def _number(low: float, high: float, meaning: str) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        try:
            number = float(text.removeprefix("x"))
        except ValueError:
            raise ValueError(f"{text!r} is not {meaning}") from None
        if not low <= number <= high:
            raise ValueError(f"{meaning} from {low:g} to {high:g} is needed")
        return int(number) if number == int(number) else number

    return parse


COMMUNICATION_OF_JOBS = (
    JobRewrite(
        name="no_straggler",
        edit=without_straggler,
        best_case=first_arrival,
        grade="A",
        about="no rank waits for the slowest one",
        bound_label="ranks that never wait for each other",
        refusal_reason=straggler_refusal_reason,
        value_help="the number of a rank",
        parse=_number(0, MAX_RANKS, "the number of a rank"),
    ),
    JobRewrite(
        name="balance",
        edit=balance,
        best_case=first_arrival,
        grade="B",
        about="the same amount of work on all ranks",
        bound_label="ranks that never wait for each other",
    ),
    JobRewrite(
        name="overlap",
        edit=overlap_of_job,
        best_case=gradients_in_no_time,
        grade="B",
        about="gradients all-reduced during backward",
        bound_label="gradients sent in no time",
        refusal_reason=overlap_of_job_refusal_reason,
        cost="kernels slow down a little during communication",
    ),
    JobRewrite(
        name="bucket_mb",
        edit=larger_buckets,
        best_case=no_communication,
        grade="B",
        about="gradients all-reduced in buckets of N MiB",
        bound_label="transfers in no time",
        refusal_reason=bucket_refusal_reason,
        value_help="a size in MiB",
        default=None,
        parse=parse_mib,
        cost="GPU memory for the buckets",
    ),
    JobRewrite(
        name="bandwidth",
        edit=bandwidth,
        best_case=no_communication,
        grade="B",
        about="a link N times as fast",
        bound_label="transfers in no time",
        value_help="a factor, such as 2",
        default=2,
        parse=_number(0.01, 1000, "a factor"),
    ),
    JobRewrite(
        name="compress",
        edit=compress,
        best_case=no_communication,
        grade="C",
        about="gradients sent in 16 bits, by a communication hook of DDP",
        bound_label="transfers in no time",
        refusal_reason=compress_refusal_reason,
        cost="accuracy of the gradients",
    ),
    JobRewrite(
        name="no_sync",
        edit=no_sync,
        best_case=lambda job, value: first_arrival(no_communication(no_sync(job, value, Draw()), value), value),
        grade="B",
        about="gradients exchanged in one of N backward passes",
        bound_label="ranks that neither wait nor send",
        refusal_reason=no_sync_refusal_reason,
        value_help="a number of backward passes",
        default=4,
        parse=_number(2, 1000, "a number of backward passes"),
        cost="an N times larger batch per update",
    ),
    JobRewrite(
        name="ranks",
        edit=scaled_to_ranks,
        best_case=scaled_best_case,
        grade="C",
        about="N ranks with as much work each",
        bound_label="messages without latency, and no later ranks",
        value_help="a number of ranks",
        default=None,
        parse=_number(2, MAX_RANKS, "a number of ranks"),
        work_factor=lambda job, value: float(value) / len(job.graphs),
    ),
)
_NAMES = {rewrite.name for rewrite in COMMUNICATION_OF_JOBS}  # on several ranks, they mean the communication of all
JOB_REWRITES: tuple[JobRewrite, ...] = (
    *(of_all_ranks(rewrite) for rewrite in REWRITES if rewrite.name not in _NAMES),
    *COMMUNICATION_OF_JOBS,
)
JOB_REWRITES_BY_NAME: Mapping[str, JobRewrite] = {rewrite.name: rewrite for rewrite in JOB_REWRITES}
