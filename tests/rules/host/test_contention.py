"""Other programs on the cores: the report says so first, and no finding is certain."""

from dataclasses import replace

import pytest

from gpulab.analysis.steps.detection import find_steps
from gpulab.rules import diagnose
from gpulab.rules.engine.evidence import cores_of_other_programs
from gpulab.tables import EventKind
from gpulab.views.report.report import report
from tests.support.runs.cases import case_module
from tests.support.runs.made_runs import NO_WORKERS, event, host_sample, loader_call, run_of, stepped


def loop(others, *, cores=2.0, threads=1.0):
    """Ten steps of 100 ms that load for 60 ms on two cores, beside programs that use `others` cores."""

    def one(at):
        return [loader_call(at, 60), event(EventKind.OP, "aten::mm", at + 60, 40)]

    own = min(threads, cores - others)
    samples = [
        host_sample(
            at,
            cpu_frac=min(1.0, (own + others) / cores),
            process_cpu_s=own * at / 1e3,
            main_delayed_s=(max(0, 1 - own) + 0.1) * at / 1e3 if others else 0.0,
        )
        for at in range(0, 1001, 50)
    ]
    return run_of(stepped(one, count=10), samples=samples, loaders=[NO_WORKERS], cores=cores)


@pytest.mark.parametrize("others", [0.0, 0.1])
def test_a_quiet_machine_is_not_mentioned(others):
    run = loop(others, threads=1.9)  # the loop itself fills the cores
    assert cores_of_other_programs(run, find_steps(run)) is None
    assert "Other processes used" not in str(report(diagnose(run)))


@pytest.mark.parametrize("others", [0.8, 1.0, 1.5])
def test_programs_that_take_a_tenth_of_the_cores_are_named_before_the_first_finding(others):
    run = loop(others)
    used = cores_of_other_programs(run, find_steps(run))
    assert float(used.split()[0]) == pytest.approx(others, rel=0.1)  # the first and last step have samples on one side
    text = str(report(diagnose(run)))
    assert text.index(used) < text.index(diagnose(run).verdict[:30])


def test_other_programs_that_are_the_first_finding_are_named_once():
    answer = diagnose(case_module("shared_cpu").computing())
    assert answer.first.rule == "shared_cpu"
    assert cores_of_other_programs(answer.run, answer.steps) is not None
    assert "Other processes used" not in str(report(answer))


def test_a_finding_is_less_certain_beside_other_programs():
    quiet, busy = (diagnose(loop(others)).first for others in (0.0, 1.5))
    assert (quiet.rule, busy.rule) == ("no_workers", "no_workers")
    assert quiet.confidence != busy.confidence
    assert "other processes" in busy.confidence_reason


def test_other_programs_are_unknown_for_a_rank_as_they_may_be_its_peers():
    run = replace(loop(1.0), rank=1)
    assert cores_of_other_programs(run, find_steps(run)) is None
    assert "Other processes used" not in str(report(diagnose(run)))
