"""The benchmark of the diagnosis counts what it says it counts: hits, false alarms, ranges that held."""

import pytest

import gpulab
from benchmarks.diagnosis import diagnosis, judging
from gpulab.run import Loader
from gpulab.tables import EventKind
from tests.support.runs.made_runs import MS, NO_WORKERS, event, loader_call, run_of, stepped

ADVISERS = ["always batch size", "TensorBoard plug-in", "four rules"]


def starved(at):
    return [loader_call(at, 40), event(EventKind.KERNEL, "ampere_bf16_s16816gemm", at + 40, 60)]


def fed(at):
    return [event(EventKind.KERNEL, "ampere_bf16_s16816gemm", at, 60)]


@pytest.fixture
def folder(tmp_path):
    """A planted run of `images` whose step takes 100 ms, 40 of them for data; a twin that takes 64 ms."""
    gpulab.save(run_of(stepped(starved), loaders=[NO_WORKERS]), tmp_path / "images.0.planted.gpulab")
    twin = run_of(stepped(fed, step_ms=64), loaders=[Loader(workers=2)])
    gpulab.save(twin, tmp_path / "images.0.twin.gpulab")
    return tmp_path


def test_a_pair_of_runs_is_judged_by_what_was_planted_and_what_its_fix_gave(folder):
    [judgement] = judging.judged(folder)
    assert judgement.cause == "no_workers"
    assert judgement.planted.first == "no_workers"
    assert judgement.planted.labels == ("no_workers",)
    assert not judgement.planted.abstained
    assert judgement.twin.loudest_frac < 0.10
    assert judgement.ratio == pytest.approx(100 / 64)
    gain = gpulab.diagnose(gpulab.load(folder / "images.0.planted.gpulab")).first.gain
    assert judgement.inside == (gain.best_ns <= 64 * MS <= gain.worst_ns)
    assert judgement.error_frac == pytest.approx(abs(gain.saved_ns / (36 * MS) - 1))


def test_a_run_without_its_twin_is_not_judged(folder):
    (folder / "images.0.twin.gpulab").unlink()
    assert list(judging.judged(folder)) == []


def test_a_planted_cause_that_is_missed_is_counted_as_missed(folder):
    gpulab.save(run_of(stepped(fed), loaders=[Loader(workers=2)]), folder / "images.0.planted.gpulab")
    [judgement] = judging.judged(folder)
    assert judgement.planted.first != "no_workers"
    assert judgement.inside is None
    row = diagnosis._row("no_workers", [judgement], ADVISERS)
    assert row.startswith("| no_workers | 1 | 0/1 | 0/1 |")


def test_the_table_counts_per_cause_and_names_the_advisers(folder):
    table = diagnosis._tables(list(judging.judged(folder)), [])
    header, _, row, total = table.splitlines()
    assert all(name in header for name in ADVISERS)
    assert row.startswith("| no_workers | 1 | 1/1 | 1/1 | 1/1 |")
    assert total.startswith("| **all planted** | 1 |")
    # A plug-in that recommends workers for a loop that waits for data is right.
    assert row.split("|")[9].strip() == "1/1"
    assert row.split("|")[8].strip() == "0/1"


def test_a_twin_of_which_much_is_claimed_is_not_clean(folder):
    gpulab.save(run_of(stepped(starved), loaders=[NO_WORKERS]), folder / "images.0.twin.gpulab")
    [judgement] = judging.judged(folder)
    assert judgement.twin.loudest == "no_workers"
    assert judgement.twin.loudest_frac > 0.10
    assert diagnosis._row("no_workers", [judgement], ADVISERS).split("|")[5].strip() == "0/1"


def test_every_label_of_a_real_trace_names_rules_and_a_trace_that_is_there(shared):
    from benchmarks.diagnosis.trace_labels import TRACES
    from gpulab.rules import RULES

    names = {rule.name for rule in RULES}
    for trace, labels in TRACES.items():
        assert (shared / "traces" / f"{trace}.json.gz").exists()
        assert set(labels) <= names
        assert labels
