"""Rules about data loading: the cause they name, their numbers, and the code they print."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace

import pytest

from gpulab.replay.graph.graph import WORKER_LIMIT
from gpulab.rules import diagnose
from gpulab.rules.data.item_cost import CHEAPER_SAMPLES_ADVICE, SHORTER_WAITS_ADVICE
from gpulab.rules.data.loader_code import change_loader
from gpulab.rules.engine.evidence import Evidence
from gpulab.run import Loader
from tests.support.runs.cases import case_module
from tests.support.runs.made_loading_runs import MAIN_PROCESS_LOADER, WORKERS, epochs, from_main, from_workers
from tests.support.runs.made_runs import MS, host_sample


def first(run):
    return diagnose(run).first


def finding_of(run, rule):
    return next(finding for finding in diagnose(run).findings if finding.rule == rule)


# One cause of late batches, never two.

FEEDING = {"no_workers", "too_few_workers", "slow_storage", "cpu_bound_loading", "cpu_oversubscription"}
LATE = {
    "too_few_workers": from_workers,
    "slow_storage": lambda: from_workers(cpu_ms=10, blocked=0.8),
    "cpu_bound_loading": lambda: from_workers(cpu_ms=190, cores=2.0, load=1.0),
    "cpu_oversubscription": lambda: from_workers(cpu_ms=190, cores=2.0, load=1.0, threads=10),
    "no_workers": from_main,
}


@pytest.mark.parametrize("rule", LATE)
def test_late_batches_have_one_cause(rule):
    diagnosis = diagnose(LATE[rule]())
    assert diagnosis.first.rule == rule
    assert FEEDING & {finding.rule for finding in diagnosis.findings} == {rule}


# Numbers of the findings.


def test_the_finding_has_the_numbers_of_workers_present_and_needed():
    finding = first(from_workers(cpu_ms=5))
    assert finding.numbers["workers"] == 2
    assert finding.numbers["needed_workers"] == finding.numbers["proposed_workers"] == 4
    assert all(number in finding.claim for number in ("2 workers", "200 ms", "60 ms"))
    assert "num_workers=4" in finding.fix


def test_no_more_computing_workers_than_cores_are_proposed():
    crowded = from_workers(cpu_ms=150, cores=3.0, load=0.6)
    assert "num_workers=3" in first(crowded).fix
    assert "3 cores" in first(crowded).evidence[-1]


NO_CORES = replace(WORKERS, workers=8)


@pytest.mark.parametrize(
    ("run", "most", "advice"),
    [
        # each computes: a core each
        (lambda: from_workers(wait_ms=95, cpu_ms=190, cores=4.0), 4, CHEAPER_SAMPLES_ADVICE),
        # not known: what is harmless anywhere
        (lambda: from_workers(wait_ms=95, cpu_ms=190, cores=None), 8, CHEAPER_SAMPLES_ADVICE),
        # they wait: several to a core, and no crowd
        (lambda: from_workers(wait_ms=95, cpu_ms=5, cores=2.0), 8, SHORTER_WAITS_ADVICE),
        # 40 % of a core each
        (lambda: from_workers(wait_ms=95, cpu_ms=80, cores=2.0), 5, SHORTER_WAITS_ADVICE),
    ],
)
def test_no_more_workers_are_proposed_than_the_cores_can_run(run, most, advice):
    finding = first(run())
    assert finding.rule == "too_few_workers"
    assert finding.numbers["needed_workers"] == 40
    assert finding.numbers["proposed_workers"] == most
    assert f"num_workers={most}," in finding.fix
    assert "40 workers" in finding.evidence[-1]
    assert finding.advice == advice
    # Two workers make a batch every 100 ms: so many make them no faster than this, whatever the model could take.
    assert finding.gain.best_ns >= 200e6 / most
    assert finding.gain.floor_ns == pytest.approx(5e6)


def test_the_next_bottleneck_is_the_workers_if_fewer_are_proposed_than_needed():
    limited, enough = from_workers(wait_ms=95, cores=None), from_workers(cores=None)
    assert diagnose(limited).first.numbers["proposed_workers"] < diagnose(limited).first.numbers["needed_workers"]
    assert diagnose(limited).next_limit == WORKER_LIMIT
    assert diagnose(enough).next_limit != WORKER_LIMIT


@pytest.mark.parametrize(
    ("cpu_ms", "cores", "limit"),
    [
        (5, 2.0, "gpulab proposes at most 8"),
        (80, 2.0, "the 2 cores here can run 5"),
        (190, 4.0, "so the 4 cores here can run only one each"),
        (5, 16.0, "gpulab proposes at most 16"),
        (5, None, "The number of cores is unknown"),
    ],
)
def test_the_evidence_says_what_limits_the_number_of_workers(cpu_ms, cores, limit):
    assert limit in first(from_workers(wait_ms=95, cpu_ms=cpu_ms, cores=cores)).evidence[-1]


@pytest.mark.parametrize(("cpu_ms", "reason"), [(5, "They can share the 8 cores"), (150, "can run one worker each")])
def test_the_evidence_says_why_the_cores_can_run_enough_workers(cpu_ms, reason):
    assert reason in first(from_workers(cpu_ms=cpu_ms, cores=8.0)).evidence[-1]


@pytest.mark.parametrize(("library", "is_asked"), [("__main__", True), (None, True), ("torch", True), ("mine", False)])
def test_only_a_dataset_that_a_notebook_may_define_has_to_move_to_a_file(library, is_asked):
    finding = first(from_main(loader=replace(MAIN_PROCESS_LOADER, dataset="Reads", dataset_library=library)))
    assert finding.rule == "no_workers"
    assert (".py file" in finding.advice) is is_asked
    assert ("dataset class Reads" in finding.advice) is (is_asked and library != "torch")


def test_cheaper_samples_are_the_alternative_to_code_that_needs_no_workers():
    finding = first(from_workers(cpu_ms=190, cores=2.0, load=1.0))
    assert "num_workers=0" in finding.fix
    assert finding.advice.startswith("Or keep the workers and make each sample cheaper")
    assert "both cores are busy" in finding.claim


@pytest.mark.parametrize("loader", [replace(WORKERS, workers=2), NO_CORES])
def test_if_the_cores_cannot_run_more_workers_the_samples_are_cached(loader):
    computing = {"cpu_ms": 100} if loader is not NO_CORES else {"cpu_ms": 5}
    finding = first(from_workers(wait_ms=95, cores=2.0, loader=loader, **computing))
    assert finding.rule == "too_few_workers"
    assert "proposed_workers" not in finding.numbers
    assert f"{'gpulab proposes' if loader is NO_CORES else 'the cores can run'} no more" in finding.claim
    assert "class Cached" in finding.fix
    assert "num_workers=0" in finding.fix  # the samples are in memory then
    assert finding.rewrites == ""
    assert finding.gain.worst_ns < finding.gain.step_ns
    assert "workers=" not in finding.gain.basis


@pytest.mark.parametrize("fetch_ms", [10, 40, 80])
@pytest.mark.parametrize("cores", [2.0, 8.0, 32.0])
def test_of_workers_and_cheaper_samples_the_one_that_surely_saves_more_comes_first(fetch_ms, cores):
    run = from_main(fetch_ms=fetch_ms, cores=cores, on_gpu=False)
    finding = next(each for each in diagnose(run).findings if each.rule == "no_workers")
    workers = [each for each in finding.alternatives if each.alternative.startswith("workers=")]
    if workers:
        assert finding.advice.startswith("Spend less CPU time per batch")
        assert finding.gain.worst_ns < workers[0].gain.worst_ns
    else:
        assert "num_workers=" in finding.fix
        assert finding.gain.worst_ns <= finding.gain.step_ns - 0.29 * fetch_ms * MS


def test_slow_storage_is_shown_by_blocked_workers_and_the_read_rate():
    finding = first(from_workers(cpu_ms=10, blocked=0.8, read=400e6, loader=replace(WORKERS, location="ext4")))
    assert "storage (ext4)" in finding.claim
    assert finding.numbers["blocked_frac"] == pytest.approx(0.8)
    assert "400 MB/s" in " ".join(finding.evidence)


def test_storage_known_only_by_its_kind_is_a_suspicion():
    assert first(from_workers(cpu_ms=10, loader=replace(WORKERS, location="nfs4"))).confidence == "suspect"


def test_cpu_bound_loading_is_shown_by_cpu_time_needed_and_available():
    evidence = " ".join(first(from_workers(cpu_ms=190, cores=2.0, load=1.0)).evidence)
    assert "180 ms of CPU time" in evidence, "the samples end half a step before the last batch"
    assert "2 cores provide 200 ms" in evidence


@pytest.mark.parametrize(("own_cores", "others"), [(0.3, "1.1 of 2 cores"), (1.3, "")])
def test_cpu_bound_loading_names_other_programs_on_the_cores_and_is_then_a_suspicion(own_cores, others):
    samples = [
        host_sample(
            at,
            worker_cpu_s=0.6 * at / 1e3,
            process_cpu_s=own_cores * at / 1e3,
            workers=WORKERS.workers,
            workers_blocked=0,
            main_delayed_s=0.3 * at / 1e3,
            cpu_frac=1.0,
        )
        for at in range(0, 1000, 50)
    ]
    finding = finding_of(from_workers(cpu_ms=60, cores=2.0, load=1.0, samples=samples), "cpu_bound_loading")
    assert ("other programs" in finding.claim, finding.confidence) == (bool(others), "suspect" if others else "likely")
    assert others in finding.claim


def test_too_many_workers_are_reported_for_information():
    run = from_workers(wait_ms=1.0, cpu_ms=5, loader=replace(WORKERS, workers=12))
    finding = finding_of(run, "too_many_workers")
    assert finding.informs_only
    assert finding.gain is None
    assert re.findall(r"\d+", finding.claim) == ["12", "2"]


def test_workers_that_may_wait_are_not_surely_needless():
    """Waiting for a network takes no CPU time. How long loading a batch takes at most shows in the first one."""
    case = case_module("too_many_workers")
    quick, waiting = (
        finding_of(case.fetches(13.5, first_ms, *[7] * 3, *[20] * 6), "too_many_workers") for first_ms in (8, 90)
    )
    assert waiting.gain.worst_speedup < 0.6 < 0.9 < quick.gain.worst_speedup
    assert "network" in waiting.advice


def test_workers_that_measured_their_waits_may_surely_be_needless():
    case = case_module("too_many_workers")
    run = case.fetches(13.5, 90, *[7] * 3, *[20] * 6)
    measured = (replace(run, loaders=(replace(run.loaders[0], worker_wait_ns=ns),)) for ns in (0, 60_000_000))
    quick, waiting = (finding_of(run, "too_many_workers") for run in measured)
    assert waiting.gain.worst_speedup < 0.7 < 0.9 < quick.gain.worst_speedup
    assert "network" in waiting.advice
    assert "network" not in quick.advice


def test_restarting_workers_costs_time_and_can_be_the_verdict():
    run = from_workers(wait_ms=1.0, loader=replace(WORKERS, workers=8), marks=epochs(90, 1))
    finding = finding_of(run, "too_many_workers")
    assert not finding.informs_only
    assert finding.gain.is_mean
    assert "8 workers" in finding.claim
    assert "persistent_workers=True" in finding.fix


def test_on_a_cpu_cheap_batches_are_better_loaded_without_restarting_workers():
    loader = replace(WORKERS, batch_tensors=1, batch_bytes=10_000, worker_wait_ns=0)
    cheap, costly = (
        finding_of(
            from_workers(wait_ms=1.0, cpu_ms=cpu_ms, loader=loader, marks=epochs(90, 1), on_gpu=False),
            "too_many_workers",
        )
        for cpu_ms in (1, 60)
    )
    assert "num_workers=0" in cheap.fix
    assert cheap.gain.worst_speedup > costly.gain.worst_speedup
    assert "persistent_workers=True" in costly.fix


def test_all_loaders_that_restart_their_workers_are_named():
    validation = replace(WORKERS, name="valid_loader", dataset="Pictures")
    evaluated = [
        {**each, "loader": 1, "start_ns": each["start_ns"] + 1000 * MS, "end_ns": each["end_ns"] + 1000 * MS}
        for each in epochs(90, 1)
    ]
    run = replace(from_workers(wait_ms=1.0, marks=[*epochs(90, 1), *evaluated]), loaders=(WORKERS, validation))
    finding = finding_of(run, "too_many_workers")
    assert "valid_loader" in finding.advice


def test_a_dataset_too_large_for_memory_is_not_cached():
    finding = first(from_workers(cpu_ms=190, cores=2.0, load=1.0, loader=replace(WORKERS, batches=40_000)))
    assert finding.rule == "cpu_bound_loading"
    assert finding.fix == ""
    assert "1,280,000 samples" in finding.caveats[0]


# The code that is printed.


def evidence_of(run):
    from gpulab.analysis.steps.detection import find_steps
    from gpulab.analysis.steps.ledger import build_ledger

    steps_of_run = find_steps(run)
    return Evidence(run, steps_of_run, build_ledger(run, steps_of_run))


def test_a_loader_is_rebuilt_under_the_name_the_user_gave_it():
    code = change_loader(evidence_of(from_main()), MAIN_PROCESS_LOADER, {"num_workers": 4}).code
    assert "train_loader = DataLoader(" in code
    assert "train_loader.dataset" in code
    assert "DataLoader(  # the same batches in the first epoch" in code


def test_other_arguments_of_the_user_stay_unchanged():
    setup = replace(
        WORKERS, pin_memory=True, persistent_workers=True, prefetch_factor=8, other_settings=("worker_init_fn",)
    )
    code = change_loader(evidence_of(from_workers()), setup, {"num_workers": 6}).code
    for argument in (
        "pin_memory=True",
        "persistent_workers=True",
        "prefetch_factor=8",
        "worker_init_fn=",
        "num_workers=6",
    ):
        assert argument in code
    without_workers = change_loader(evidence_of(from_workers()), setup, {"num_workers": 0}).code
    assert "prefetch_factor" not in without_workers, "PyTorch refuses it without workers"
    assert "persistent_workers" not in without_workers


torch = pytest.importorskip("torch")


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.tensor(index * index)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return (torch.tensor(number) for number in range(20))


def every_other(batch):
    return torch.stack(batch[::2])


def as_recorded(loader):
    """What gpulab records of a DataLoader of the user's."""
    from gpulab.capture.hooks.loader_settings import loader_settings

    return replace(loader_settings(iter(loader)), name="loader")


@pytest.mark.parametrize(
    "loader",
    [
        torch.utils.data.DataLoader(Squares(), batch_size=3),
        torch.utils.data.DataLoader(Squares(), batch_size=3, drop_last=True, collate_fn=every_other),
        torch.utils.data.DataLoader(Squares(), batch_size=4, sampler=range(3, 11)),
        torch.utils.data.DataLoader(Squares(), batch_size=None),
        torch.utils.data.DataLoader(Squares(), batch_sampler=[[1, 2], [5]]),
        torch.utils.data.DataLoader(Stream(), batch_size=3, drop_last=True),
        torch.utils.data.DataLoader(Stream(), batch_size=None),
    ],
    ids=["plain", "dropping and collating", "sampled", "unbatched", "own batches", "stream", "unbatched stream"],
)
def test_the_rebuilt_loader_gives_the_same_batches(loader):
    code = change_loader(evidence_of(from_main()), as_recorded(loader), {"num_workers": 0}).code
    names = {"loader": loader}
    expected = [batch.tolist() for batch in loader]
    exec(code, names)
    assert names["loader"] is not loader
    assert [batch.tolist() for batch in names["loader"]] == expected


def test_a_shuffled_loader_is_rebuilt_with_its_own_order():
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(3)
    )
    names = {"loader": loader}
    exec(change_loader(evidence_of(from_main()), as_recorded(loader), {"num_workers": 0}).code, names)
    again = [batch.tolist() for batch in names["loader"]]
    loader.generator.manual_seed(3)
    assert again != [batch.tolist() for batch in torch.utils.data.DataLoader(Squares(), batch_size=3)]
    assert sorted(number for batch in again for number in batch) == [index * index for index in range(20)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("rule", LATE)
def test_the_code_of_a_fix_runs_as_it_stands(rule):
    run = LATE[rule]()
    loader = torch.utils.data.DataLoader(Squares(), batch_size=32)
    name = run.loaders[0].name
    names = {name: loader}
    exec(first(run).fix, names)
    assert isinstance(names[name], torch.utils.data.DataLoader)


def test_cached_samples_are_loaded_once_and_are_the_same():
    loaded = []

    class Counting(Squares):
        def __getitem__(self, index):
            loaded.append(index)
            return super().__getitem__(index)

    loader = torch.utils.data.DataLoader(Counting(), batch_size=3)
    expected = [batch.tolist() for batch in loader]
    loaded.clear()
    names = {"loader": loader}
    exec(first(LATE["cpu_bound_loading"]()).fix, names)
    for _ in range(2):
        assert [batch.tolist() for batch in names["loader"]] == expected
    assert loaded == list(range(20))


def test_the_fix_for_threads_gives_each_core_one():
    case = case_module("cpu_oversubscription")
    finding = first(case.provoked_by_four_threads_for_each_core())
    assert finding.rule == "cpu_oversubscription"
    assert "torch.set_num_threads(2)" in finding.fix
    assert finding.gain.best_speedup > 2 > finding.gain.worst_speedup > 1
    tree = ast.parse(finding.fix)
    assert json.dumps([type(node).__name__ for node in tree.body]) == '["Import", "Expr"]'
    products = first(case.computing(op="aten::mm"))
    assert products.rule != "cpu_oversubscription" or products.gain is None, "MKL takes no more threads than cores"


# What recorded traces hold.


@pytest.mark.parametrize("name", ["v100_resnet50_workers4", "h100_timesformer_inference"])
def test_rules_about_workers_do_not_fire_on_traces_without_worker_data(recorded, name):
    import gpulab

    rules = {finding.rule for finding in gpulab.diagnose(gpulab.load(recorded(f"{name}.json.gz"))).findings}
    assert not rules & {
        "slow_storage",
        "cpu_bound_loading",
        "cpu_oversubscription",
        "too_many_workers",
        "too_few_workers",
    }


@pytest.fixture
def unknown():
    return Loader(workers=0)


def test_the_fix_for_a_loader_of_unknown_setup_keeps_the_batches(unknown):
    code = change_loader(evidence_of(from_main()), unknown, {"num_workers": 2}).code
    assert "batch_sampler=train_loader.batch_sampler" in code
    assert "the same batches in the first epoch, except for random transforms; later shuffles may differ" in code
