"""gpulab.fleet on files: local clusters, URLs, broken files, killed workers, the cache, and the report."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import gpulab
from gpulab.errors import GpulabError, RunError, TraceError
from tests.support.runs.cases import case_module

distributed = pytest.importorskip("distributed", reason="needs the extra: pip install gpulab[fleet]")
fsspec = pytest.importorskip("fsspec")

from gpulab.fleet import analysis, cluster, fleet, rank_task, summary_cache  # noqa: E402
from gpulab.fleet.rank_files import RankFile  # noqa: E402

JOB = case_module("straggler")
# Dask's own: sockets and loops that it closes later.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def write_job(folder, runs=None):
    runs = JOB.provoked_by_one_rank_that_builds_its_batches_itself() if runs is None else runs
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        gpulab.save(run, folder / f"rank_{run.rank}.gpulab")
    return folder


@pytest.fixture(scope="module")
def job_folder(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def in_process():
    """A cluster in this process: it shares memory:// with the test."""
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as local,
        distributed.Client(local) as client,
    ):
        yield client


def test_a_local_cluster_names_the_planted_straggler_and_is_closed_at_the_end(job_folder, monkeypatch):
    monkeypatch.setattr(analysis, "_SMALL_TEXT_BYTES", 0)
    started = []
    monkeypatch.setattr(
        analysis, "cluster_client", lambda *given: started.append(given) or cluster.cluster_client(*given)
    )
    children = set(processes())
    result = gpulab.fleet(job_folder, progress=False)
    assert result.straggler.late_rank == JOB.LATE
    assert result.straggler.others_wait_ns == 30_000_000
    assert len(result.ranks) == 8
    assert (result.unread, result.missing_ranks) == ((), ())
    deadline = time.monotonic() + 10
    while (left := set(processes()) - children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert started


def test_few_small_files_are_read_without_a_cluster_with_the_same_result(tmp_path, in_process, monkeypatch):
    folder = write_job(tmp_path / "job")
    (folder / "rank_1.gpulab").write_bytes(b"")
    (folder / "settings.json").write_text('{"batch": 32}')
    expected = fleet(folder, in_process, progress=False)

    def started(*_):
        pytest.fail("a cluster was started")

    monkeypatch.setattr(analysis, "cluster_client", started)
    result = fleet(folder, progress=False)
    assert repr(result) == repr(expected)
    assert [(one.rank, one.path) for one in result.ranks] == [(one.rank, one.path) for one in expected.ranks]
    assert [file.rank for file in result.unread] == [file.rank for file in expected.unread] == [1]
    assert result.straggler.late_rank == expected.straggler.late_rank == JOB.LATE
    assert result.missing_ranks == expected.missing_ranks


def test_without_a_cluster_too_a_file_that_fails_costs_only_itself(job_folder, monkeypatch):
    def fails_on_rank_5(file, reading):
        if file.name == "rank_5.gpulab":
            raise ZeroDivisionError("made up")
        return rank_task.summarise_file(file, reading)

    monkeypatch.setattr(analysis, "summarise_file", fails_on_rank_5)
    result = fleet(job_folder, progress=False)
    assert [summary.rank for summary in result.ranks] == [0, 1, 2, 3, 4, 6, 7]
    assert [(file.rank, "made up" in file.reason) for file in result.unread] == [(5, True)]


@pytest.mark.parametrize(
    ("files", "is_here"),
    [
        ([RankFile("rank_0.json", 200_000_000)], True),
        ([RankFile("rank_0.json", 200_000_000), RankFile("rank_1.json", 200_000_000)], False),
        ([RankFile(f"rank_{rank}.json.gz", 2_300_000) for rank in range(8)], True),
        ([RankFile(f"rank_{rank}.json.gz", 2_300_000) for rank in range(64)], False),
        ([RankFile("s3://bucket/rank_0.json.gz", 1000)], False),
    ],
)
def test_large_jobs_and_files_at_urls_are_for_a_cluster(files, is_here):
    assert analysis._are_small(files) is is_here


def processes():
    import psutil

    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(child.cmdline())
    ]


def test_a_local_cluster_listens_on_this_machine_only_and_its_workers_reuse_the_memory_that_they_free(monkeypatch):
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    before = listening()
    with cluster.cluster_client(None, tasks=1) as client:
        (environment,) = client.run(lambda: dict(os.environ)).values()
        addresses = listening() - before
    assert addresses
    assert {ip for ip, _ in addresses} == {"127.0.0.1"}
    assert "MALLOC_TRIM_THRESHOLD_" not in environment, "Dask's setting for the allocator of glibc"
    assert environment["OMP_NUM_THREADS"] == "1", "its other settings stay"


def listening():
    import psutil

    return {
        connection.laddr
        for process in (psutil.Process(), *psutil.Process().children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def test_broken_files_cost_only_themselves_and_are_listed_with_reasons(tmp_path, in_process):
    folder = write_job(tmp_path / "job")
    for rank, content in ((1, b""), (6, b"<html>"), (7, bytes(range(256)))):
        (folder / f"rank_{rank}.gpulab").write_bytes(content)
    (folder / "settings.json").write_text('{"batch": 32}')
    result = fleet(folder, in_process, progress=False)
    assert [summary.rank for summary in result.ranks] == [0, 2, 3, 4, 5]
    assert [file.rank for file in result.unread] == [1, 6, 7]
    assert all(len(file.reason) > 10 for file in result.unread)
    assert result.straggler.late_rank == JOB.LATE
    assert result.missing_ranks == ()


def test_a_truncated_trace_is_read_in_part(tmp_path, in_process, recorded):
    trace = Path(recorded("a100_ddp_8ranks_rank.json.gz")).read_bytes()
    (tmp_path / "rank_3.json.gz").write_bytes(trace[: len(trace) // 2])
    result = fleet(tmp_path, in_process, progress=False)
    assert result.ranks[0].events > 1000
    assert result.missing_ranks == (0, 1, 2, 4, 5, 6, 7)
    assert "Read in part, because the traces are damaged: 1 rank." in repr(result)


def test_files_at_urls_are_opened_on_the_workers(job_folder, in_process, tmp_path):
    memory = fsspec.filesystem("memory")
    for path in job_folder.iterdir():
        memory.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    for url in ("memory://bucket", "memory://bucket/rank_*.gpulab", f"file://{job_folder}/*.gpulab"):
        result = fleet(url, in_process, progress=False)
        assert (len(result.ranks), result.straggler.late_rank) == (8, JOB.LATE), url
    result = fleet("memory://bucket/rank_[35].gpulab", in_process, progress=False)
    run = result.rank(JOB.LATE)
    assert (run.rank, len(run.event_rows) > 0) == (JOB.LATE, True)
    with pytest.raises(RunError, match="There is no run of rank 4"):
        result.rank(4)


def test_no_file_is_an_error_that_says_so(in_process, tmp_path):
    for path in ("memory://nothing/*.json", tmp_path, []):
        with pytest.raises(TraceError):
            fleet(path, in_process, progress=False)
    (tmp_path / "rank_0.json").write_text("")
    with pytest.raises(TraceError, match="None of the 1 files"):
        fleet(tmp_path, in_process, progress=False)


def test_a_killed_worker_loses_no_rank(tmp_path, monkeypatch):
    folder = write_job(tmp_path / "job")
    with worker_processes(2) as client:
        before = set(client.run(os.getpid).values())
        monkeypatch.setattr(cluster, "summarise_file", dies_once_on_rank_3)
        result = fleet(folder, client, progress=False)
    assert int((folder / "killed").read_text()) in before
    assert [summary.rank for summary in result.ranks] == list(range(8))
    assert result.unread == ()
    assert result.straggler.late_rank == JOB.LATE


def dies_once_on_rank_3(file, reading):
    mark = Path(file.path).with_name("killed")
    if file.name == "rank_3.gpulab" and not mark.exists():
        mark.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return rank_task.summarise_file(file, reading)


@contextmanager
def worker_processes(count):
    with (
        distributed.LocalCluster(
            n_workers=count, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as local,
        distributed.Client(local) as client,
    ):
        yield client


def test_of_the_files_on_a_killed_worker_only_the_one_that_kills_it_is_listed(job_folder, monkeypatch):
    with worker_processes(1) as client:
        # Dask then fails all tasks of a worker at its first death, not at the fourth.
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 0))
        monkeypatch.setattr(cluster, "summarise_file", dies_on_rank_5)
        result = fleet(job_folder, client, progress=False)
    assert [file.rank for file in result.unread] == [5]
    assert "killed" in result.unread[0].reason
    assert [summary.rank for summary in result.ranks] == [0, 1, 2, 3, 4, 6, 7]


@dataclass(frozen=True)
class ReportedFuture:
    """A future of Dask that was reported as finished: its result was lost with a worker since, or it was cancelled."""

    status: str

    def cancelled(self):
        return self.status == "cancelled"

    def exception(self):
        return None  # of a lost one after it was computed again


def collected(status):
    task = ReportedFuture(status)
    ranks = cluster._Collected(client=None, tasks={task: RankFile("rank_3.json")})
    ranks.add_rank(task)
    return ranks


def test_a_result_that_was_lost_with_its_worker_is_no_failure():
    assert len(collected("lost")._ready) == 1


def test_a_file_whose_task_was_cancelled_is_listed():
    (file,) = collected("cancelled").job.unread
    assert (file.rank, "cancelled" in file.reason) == (3, True)


def dies_on_rank_5(file, reading):
    if file.name == "rank_5.gpulab":
        os.kill(os.getpid(), signal.SIGKILL)
    return rank_task.summarise_file(file, reading)


def test_an_interrupted_analysis_resumes_from_the_cache(tmp_path, in_process, monkeypatch):
    folder, cache = write_job(tmp_path / "job"), tmp_path / "cache"
    read = []

    def counted(run, path):
        read.append(Path(path).name)
        return original(run, path)

    original = rank_task.summarise_run
    monkeypatch.setattr(rank_task, "summarise_run", counted)
    files = sorted(folder.iterdir())
    fleet(files[:5], in_process, cache=cache, progress=False)
    complete = fleet(files, in_process, cache=cache, progress=False)
    assert sorted(read) == [path.name for path in files]
    assert complete.job == fleet(files, in_process, progress=False).job
    read.clear()
    files[2].write_bytes(files[2].read_bytes())
    os.utime(files[2], ns=(1, 1))
    next(cache.iterdir()).write_bytes(b"damaged")
    fleet(files, in_process, cache=cache, progress=False)
    assert files[2].name in read
    assert len(read) in (1, 2)  # the damaged entry may be that of the changed file


def test_other_code_makes_other_cache_entries(tmp_path, in_process, monkeypatch):
    folder, cache = write_job(tmp_path / "job"), tmp_path / "cache"
    fleet(folder, in_process, cache=cache, progress=False)
    monkeypatch.setattr("gpulab.fleet.analysis.reader_digest", lambda: "other")
    fleet(folder, in_process, cache=cache, progress=False)
    assert len(list(cache.iterdir())) == 16
    assert len(summary_cache.reader_digest()) == 64


def test_missing_libraries_are_named_with_the_command_that_installs_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask", None)
    with pytest.raises(GpulabError, match=r'pip install "gpulab\[fleet\]"') as caught:
        gpulab.fleet("anywhere")
    assert caught.value.why == "not installed: dask"


def test_importing_the_package_imports_no_dask():
    script = (
        "import sys, gpulab; gpulab.fleet; print([n for n in ('dask', 'distributed', 'fsspec') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


# The report.


@pytest.fixture
def result(job_folder, in_process):
    return fleet(job_folder, in_process, progress=False)


def test_the_report_states_the_straggler_its_cause_and_what_to_load(result):
    text = " ".join(repr(result).split())
    assert "Rank 3 is a straggler that waits for data: 7 other GPUs wait 30 ms of each 100 ms step for it." in text
    assert "gpulab.report(fleet.rank(3))" in text
    assert "8 ranks of 8 read." in text


def test_the_ledger_over_ranks_has_the_numbers_of_the_ranks(result):
    loader = [summary.part_ns["loader"] for summary in result.ranks]
    assert result.ledger["loader"].most_ns == max(loader) == 30_000_000
    assert result.ledger["loader"].most_rank == JOB.LATE
    assert result.ledger["loader"].median_ns == 0
    assert result.ranks_frame.set_index("rank").loc[JOB.LATE, "loader_ns"] == 30_000_000


def test_findings_are_counted_over_ranks(result):
    counts = {item.rule: item.ranks for item in result.findings}
    assert counts["no_workers"] == (JOB.LATE,)
    assert sum(item.count for item in result.findings) == 8


def test_the_report_is_a_view_that_can_be_saved_and_is_safe(result, tmp_path):
    page = result.report().save(tmp_path / "job.html").read_text()
    assert "is a straggler" in page
    assert "<script" not in page
    assert set(result._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_without_a_straggler_the_most_frequent_finding_is_the_headline(tmp_path, in_process):
    runs = JOB.job(fetch_ms=lambda rank, step: 30, loaders=lambda rank: [JOB.Loader(workers=0, batch_size=32)])
    result = fleet(write_job(tmp_path / "job", runs), in_process, progress=False)
    assert result.straggler is None
    assert repr(result).startswith("On 8 of 8 ranks, the first finding is no_workers.")


def test_ranks_that_take_turns_are_the_headline(tmp_path, in_process):
    result = fleet(
        write_job(tmp_path / "job", JOB.spared_as_ranks_take_turns_in_being_late()), in_process, progress=False
    )
    assert "which is another rank from step to step" in " ".join(repr(result).split())
