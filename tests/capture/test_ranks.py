"""Ranks of a job: what a launcher or torch.distributed says, runs of started ranks, destroyed groups of gloo."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from gpulab.capture.job_rank import JobRank, launched_rank, rank_facts, rank_name, rank_of_name
from gpulab.capture.run_registry import Runs
from tests.support.python_program import run_python
from tests.support.runs.made_runs import run_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, JobRank(3, 8)),  # torchrun, Accelerate, DeepSpeed, Ray
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, JobRank(0, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, JobRank(1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "16"}, JobRank(5, 16)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, None),  # a batch script
        (
            {"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
            JobRank(1, 2),
        ),  # torchrun in Slurm
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "high", "WORLD_SIZE": "8"}, None),
        ({"RANK": "8", "WORLD_SIZE": "8"}, None),
        ({"RANK": "1"}, None),
    ],
)
def test_the_rank_is_that_of_the_launcher(environ, expected):
    assert launched_rank(environ) == expected


def test_a_rank_is_recorded_with_its_job_and_its_machine_a_single_process_with_neither(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert rank_facts() == {}
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_facts() == {"rank": "1", "world_size": "2", "host": platform.node()}


def test_the_name_of_a_rank_returns_the_rank():
    assert [rank_of_name(rank_name(rank)) for rank in (0, 7, 512)] == [0, 7, 512]
    assert rank_of_name("run") is None
    assert rank_of_name("ranking") is None


def test_the_runs_of_ranks_belong_to_the_run_that_started_them():
    runs = Runs()
    runs.add(run_of([], name="job"))
    runs.add_ranks("job", [run_of([], name="job-rank0"), run_of([], name="job-rank1")])
    assert [run.name for run in runs.with_ranks("job")] == ["job-rank0", "job-rank1"]
    assert runs.last.name == "job"
    runs.add(run_of([], name="job"))  # recorded again, without ranks
    assert [run.name for run in runs.with_ranks("job")] == ["job"]


RANKS_IN_A_BLOCK = """
import torch, torch.multiprocessing as mp, gpulab
import torch.distributed as dist

def train(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    before = mp.start_processes
    with gpulab.profile("job") as session:
        mp.start_processes(train, args=(__file__ + ".store",), nprocs=2, start_method="%s")
    assert mp.start_processes is before
    print([run.rank for run in session.child_runs], [run.facts["world_size"] for run in session.child_runs])
    print([run.name for run in gpulab.runs.with_ranks("job")])
    from gpulab.analysis.steps.detection import find_steps
    print([len(find_steps(run)) >= 29 for run in session.child_runs])
"""


@pytest.mark.full
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ranks_that_a_recorded_block_starts_are_recorded(tmp_path, method):
    result = run_python(tmp_path, RANKS_IN_A_BLOCK % method)
    assert result.stdout.splitlines() == ["[0, 1] ['2', '2']", "['job-rank0', 'job-rank1']", "[True, True]"], (
        result.stderr
    )


OPEN_EXCHANGE = """
import os, time, torch, torch.distributed as dist, torch.multiprocessing as mp
from gpulab.capture.profiler import TraceWindow

def work(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    dist.barrier()
    if rank:
        time.sleep(120)  # it receives nothing: the exchange stays open
    window = TraceWindow(())
    window.start()
    exchange = dist.isend(torch.ones(1 << 20), 1)
    torch.ones(3)
    window.stop_quietly()
    print(window.count_events().is_open, flush=True)
    os._exit(1)  # before anything can end the exchange

if __name__ == "__main__":
    mp.start_processes(work, args=(__file__ + ".store",), nprocs=2, start_method="fork")
"""


@pytest.mark.full
def test_an_exchange_that_was_not_waited_for_is_open(tmp_path):
    """PyTorch writes its end into freed memory if another window has begun, and the program crashes."""
    result = run_python(tmp_path, OPEN_EXCHANGE)
    assert result.stdout == "True\n", result.stderr


MANY_EVENTS_BETWEEN_EXCHANGES = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp, gpulab
from gpulab.capture import tracing
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

def train(rank, store):
    tracing.MAX_EVENTS["trace"] = 400  # a step has more: windows are to end within steps
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    layers = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(4)])
    stage = PipelineStage(layers, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=6, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)
    with gpulab.profile("stage") as session:
        for _ in range(40):
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(torch.randn(96, 256))
            else:
                schedule.step(target=torch.zeros(96, 256))
            optimizer.step()
    dist.barrier()
    print(f"{len(session.run.recording.windows_ns) > 1} ", end="", flush=True)

if __name__ == "__main__":
    mp.start_processes(train, args=(__file__ + ".store",), nprocs=2, start_method="spawn")
"""


@pytest.mark.night
def test_a_pipeline_ends_as_usual_although_its_steps_have_too_many_events(tmp_path, monkeypatch):
    """PyTorch corrupts memory if its profiler stops while an exchange is open; freed memory is overwritten here."""
    monkeypatch.setenv("MALLOC_PERTURB_", "165")
    result = run_python(tmp_path, MANY_EVENTS_BETWEEN_EXCHANGES)
    assert (result.returncode, result.stdout.split()) == (0, ["True", "True"]), result.stderr


GROUPS_ONE_AFTER_ANOTHER = """
import contextlib, os, socket, time, torch, torch.distributed as dist
import gpulab

def is_free(port):
    for _ in range(200):  # the thread of the store ends a little later
        with socket.socket() as next_one, contextlib.suppress(OSError):
            next_one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            next_one.bind(("127.0.0.1", port))
            return "free"
        time.sleep(0.05)
    return "taken"

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")
states = []
with gpulab.profile("groups", level="sensors"):
    for _ in range(2):
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(2))
        dist.destroy_process_group()
        states.append(is_free(port))
print(*states)
"""


def test_the_port_of_a_group_of_gloo_is_free_once_it_is_destroyed(tmp_path):
    result = run_python(tmp_path, GROUPS_ONE_AFTER_ANOTHER)
    assert result.stdout.split() == ["free", "free"], result.stderr
