"""What notebook 15 stands on: real ranks, counted collectives, simulated rings, a timeline of buckets."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gpulab import GpulabError  # noqa: E402  (after the skip)
from gpulab.hardware import gpus, pcie  # noqa: E402
from gpulab.lessons.labs.ranks import (  # noqa: E402
    data_parallel,
    gloo_ranks,
    launched_script,
    link_rates,
    overlap_model,
    rings,
    splits,
    stale_training,
    stragglers,
)

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("PyTorch has no gloo here", allow_module_level=True)


@pytest.fixture(scope="module")
def pool():
    ranks = gloo_ranks.RankPool(2)
    yield ranks
    ranks.close()


def who():
    return dist.get_rank(), dist.get_world_size()  # noqa: F821  (a name that the ranks know)


def sum_of_ranks(start):
    tensor = torch.full((4,), start + dist.get_rank())  # noqa: F821
    dist.all_reduce(tensor)  # noqa: F821
    return tensor


def fail_on_rank_1():
    if dist.get_rank() == 1:  # noqa: F821
        raise ValueError("no data")
    dist.barrier()  # noqa: F821


# Ranks.


def test_ranks_run_a_function_and_return_its_values(pool):
    assert pool.run(who) == [(0, 2), (1, 2)]
    assert pool.run(who, ranks=1) == [(0, 1)]
    assert [tensor.tolist() for tensor in pool.run(sum_of_ranks, 10.0)] == [[21.0] * 4] * 2


def test_a_rank_that_fails_is_named_and_the_next_call_works(pool):
    with pytest.raises(GpulabError, match="Rank 1 failed") as error:
        pool.run(fail_on_rank_1)
    assert "ValueError: no data" in str(error.value.why)
    assert pool.run(who) == [(0, 2), (1, 2)]


def test_more_ranks_than_processes_are_an_error(pool):
    with pytest.raises(GpulabError, match="There are 2 ranks, not 3"):
        pool.run(who, ranks=3)


def test_a_function_without_source_is_an_error():
    names = {}
    exec("def unknown(): pass", names)
    with pytest.raises(GpulabError, match="source of unknown"):
        gloo_ranks.sent_function(names["unknown"])


def test_closing_ends_the_processes():
    ranks = gloo_ranks.RankPool(1)
    processes = list(ranks._processes)
    ranks.close()
    assert not any(process.is_alive() for process in processes)


# Counted collectives on two ranks.


def no_hook(model):
    pass


def float16(model):
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)  # noqa: F821


def power_sgd(model):
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3)  # noqa: F821
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)  # noqa: F821


def test_the_bytes_of_hooks_are_those_of_their_formulas(pool):
    weights = list(data_parallel.classifier().parameters())
    whole = sum(4 * weight.numel() for weight in weights)

    def power_bytes(weight):
        # PowerSGD compresses a matrix of m x n if (m + n) * rank * 2 < m * n, and sends vectors as they are
        if weight.dim() < 2 or sum(weight.shape) * 2 * 2 >= weight.numel():
            return 4 * weight.numel()
        return 4 * 2 * sum(weight.shape)

    plain, half, thin = (pool.run(data_parallel.train_shard, hook, 6)[0] for hook in (no_hook, float16, power_sgd))
    assert plain["bytes"] == [whole] * 6
    assert half["bytes"] == [whole // 2] * 6
    assert thin["bytes"] == [whole] * 3 + [sum(map(power_bytes, weights))] * 3
    assert half["loss"] == pytest.approx(plain["loss"], rel=0.01)


@pytest.mark.parametrize(("cap", "count"), [(25, 1), (4, 2), (2, 4), (1, 8)])
def test_buckets_start_when_their_share_of_gradients_is_ready(pool, cap, count):
    first, second = pool.run(data_parallel.bucket_starts, cap)
    assert first == second
    assert [share for _, share in first] == pytest.approx([(index + 1) / count for index in range(count)])
    assert sum(size for size, _ in first) == 8 * 4 * (512 * 512 + 512)


def to_rank_0_and_back(tensor):
    if dist.get_rank() == 1:  # noqa: F821
        dist.send(tensor, 0)  # noqa: F821
        dist.recv(tensor, 0)  # noqa: F821
        return tensor
    part = torch.empty_like(tensor)
    dist.recv(part, 1)  # noqa: F821
    dist.send(tensor + part, 1)  # noqa: F821
    return tensor + part


def scattered_and_gathered(tensor):
    part = tensor.new_empty(len(tensor) // dist.get_world_size())  # noqa: F821
    dist.reduce_scatter_tensor(part, tensor)  # noqa: F821
    dist.all_gather_into_tensor(tensor, part)  # noqa: F821
    return tensor


def only_scattered(tensor):
    dist.reduce_scatter_tensor(tensor[: len(tensor) // 2].clone(), tensor)  # noqa: F821
    return tensor


def test_an_all_reduce_of_other_primitives_gives_the_sum_and_counts_what_it_sends(pool):
    expected = torch.arange(data_parallel.SUMMED_NUMBERS) % 101 * 3.0
    by_hand, halves, wrong = (
        pool.run(data_parallel.summed, function)
        for function in (to_rank_0_and_back, scattered_and_gathered, only_scattered)
    )
    assert all(torch.equal(rank["sum"], expected) for rank in (*by_hand, *halves))
    assert [rank["sent"] for rank in by_hand] == [1, 1]
    assert [rank["kinds"] for rank in by_hand] == [["receive", "send"], ["send", "receive"]]
    assert halves[0]["kinds"] == ["reduce-scatter", "all-gather"]
    assert halves[0]["sent"] == 0  # the backend's business
    assert not any(torch.equal(rank["sum"], expected) for rank in wrong)


def synchronised(model, batches):
    for inputs, labels in batches:
        functional.cross_entropy(model(inputs), labels).div(len(batches)).backward()  # noqa: F821


def forward_outside(model, batches):
    for index, (inputs, labels) in enumerate(batches):
        loss = functional.cross_entropy(model(inputs), labels).div(len(batches))  # noqa: F821
        with nullcontext() if index == len(batches) - 1 else model.no_sync():  # noqa: F821
            loss.backward()


def forward_inside(model, batches):
    for index, (inputs, labels) in enumerate(batches):
        with nullcontext() if index == len(batches) - 1 else model.no_sync():  # noqa: F821
            functional.cross_entropy(model(inputs), labels).div(len(batches)).backward()  # noqa: F821


def test_no_sync_needs_the_forward_pass_inside(pool):
    outcomes = [
        pool.run(data_parallel.accumulated, function, 3)[0]
        for function in (synchronised, forward_outside, forward_inside)
    ]
    assert [outcome["collectives"] for outcome in outcomes] == [3, 3, 1]
    assert all(torch.allclose(outcome["gradient"], outcomes[0]["gradient"], atol=1e-7) for outcome in outcomes)


def columns_and_rows(up, down, rank, ranks):
    return up.chunk(ranks, dim=1)[rank], down.chunk(ranks, dim=0)[rank]


def summed(x, columns, rows):
    return sum_forward(functional.gelu(sum_backward(x) @ columns) @ rows)  # noqa: F821


def test_all_splits_have_the_gradient_of_one_device(pool):
    first, second = pool.run(splits.split_step, columns_and_rows, summed)
    whole = splits.whole_gradient()
    for name in ("tensor", "fully sharded"):
        assert torch.allclose(torch.cat([rank[name]["gradient"] for rank in (first, second)], dim=1), whole, atol=1e-6)
        assert first[name]["stored"] + second[name]["stored"] == splits.WEIGHT_BYTES
    for name in ("data", "pipeline"):
        assert torch.allclose(first[name]["gradient"], whole, atol=1e-6), name
    assert first["pipeline"]["kinds"] == ["send", "receive"]
    assert second["pipeline"]["kinds"] == ["receive", "send"]


@pytest.mark.full
def test_all_ranks_of_a_step_with_a_straggler_leave_together():
    ranks = gloo_ranks.RankPool(4)
    noted = ranks.run(stragglers.slow_steps, 6, ranks=4)
    ranks.close()
    for step in range(6):
        last = max(range(4), key=lambda rank: noted[rank]["arrived"][step])
        assert last == stragglers.SLOW_RANK
        assert all(times["left"][step] >= noted[last]["arrived"][step] for times in noted)


# Links and rings.


def test_a_link_is_recovered_from_the_times_that_it_gives():
    link = link_rates.fitted_link({size: 2 * 5e-5 + size / 3e9 for size in (4096, 10**6, 10**7)})
    assert link.latency_s == pytest.approx(5e-5)
    assert link.bytes_per_s == pytest.approx(3e9)


def test_published_links_agree_with_the_table_of_gpus():
    rates = {each.name: each.bytes_per_s for each in link_rates.PUBLISHED_LINKS}
    for name, rate in rates.items():
        if name.startswith("NVLink"):
            model = name.split()[-1].lower()
            assert rate in {spec.nvlink_bytes_per_s for spec in gpus.SPECS if model in spec.name.lower()}, name
    for generation in (4, 5):  # what a copy reaches is less
        reached = pcie.pinned_copy_bytes_per_s(generation, 16)
        assert 0.6 < reached / rates[f"PCIe {generation}.0 x16"] < 1
    assert list(rates.values()) == sorted(rates.values())


PATTERNS = {
    "ring": lambda vectors: rings.ring(vectors, range(8)),
    "ring, in turn": lambda vectors: rings.ring(vectors, [0, 4, 1, 5, 2, 6, 3, 7]),
    "tree": rings.tree,
    "hierarchy": rings.hierarchy,
}


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_leaves_the_sum_on_all_devices(name):
    vectors = rings.device_vectors()
    expected = np.sum(vectors, axis=0)
    PATTERNS[name](vectors)
    assert all((vector == expected).all() for vector in vectors)


def test_rounds_and_bytes_of_patterns_are_those_of_textbooks():
    logs = {name: pattern(rings.device_vectors()) for name, pattern in PATTERNS.items()}
    assert {name: log.steps for name, log in logs.items()} == {
        "ring": 2 * 7,
        "ring, in turn": 2 * 7,
        "tree": 2 * int(math.log2(8)),
        "hierarchy": 2 * 3 + 2 * 1,
    }
    crossing = {name: log.bytes_between_hosts / rings.DATA_BYTES for name, log in logs.items()}
    per_arrow = 2 * 7 / 8
    # a tree sends the sum of a host over, and the total back; so do the four parts of a hierarchy, half in each round
    assert crossing == {"ring": 2 * per_arrow, "ring, in turn": 8 * per_arrow, "tree": 2, "hierarchy": 2}
    assert set(logs["ring"].bytes_by_link.values()) == {per_arrow * rings.DATA_BYTES}


# The timeline of buckets.


@pytest.mark.parametrize("cap", [1, 3, 7, 100])
def test_buckets_contain_all_gradients_in_order(cap):
    buckets = overlap_model.make_buckets([1, 2, 3, 4], 8.0, cap)
    assert sum(bucket.bytes for bucket in buckets) == 10
    assert [bucket.ready_ms for bucket in buckets] == sorted(bucket.ready_ms for bucket in buckets)
    assert buckets[-1].ready_ms == 8.0
    assert all(bucket.bytes >= cap for bucket in buckets[:-1])


# Workers that do not wait.


def test_a_synchronous_server_waits_for_the_slowest():
    clock = stale_training.clock_of_workers((10, 11, 12, 30), needed=4)
    assert clock.gradients_per_s == pytest.approx(4 / 0.030)
    assert clock.wait_frac == pytest.approx((20 + 19 + 18 + 0) / (4 * 30))
    assert clock.mean_staleness == 0


def test_asynchronous_workers_deliver_at_their_own_speed():
    periods = (10, 11, 12, 30)
    clock = stale_training.clock_of_workers(periods, needed=1)
    assert clock.gradients_per_s == pytest.approx(sum(1000 / period for period in periods), rel=0.01)
    assert clock.wait_frac == 0
    assert clock.mean_staleness == pytest.approx(3, rel=0.01)  # between two of a worker, the others deliver the rest


def test_equal_copies_stay_equal_and_copies_without_exchange_differ():
    mean = stale_training.loss_with_mixing(lambda copies: [sum(copies) / len(copies)] * len(copies), 3, 5)
    alone = stale_training.loss_with_mixing(lambda copies: copies, 3, 5)
    assert mean[1] < 1e-5 < alone[1]


def test_fresh_gradients_are_plain_sgd():
    weights, gradient_of, loss_of = stale_training._problem()
    for update in range(20):
        weights = weights - 0.3 * gradient_of(weights, update)
    assert stale_training.loss_with_staleness(0, 0.3, updates=20) == pytest.approx(loss_of(weights))


# Scripts that a launcher starts.

SCRIPT = """
import json, os, sys
from pathlib import Path
rank = os.environ["RANK"]
Path(f"rank{rank}.json").write_text(json.dumps({"ranks": os.environ["WORLD_SIZE"]}))
"""


@pytest.mark.full
def test_torchrun_starts_ranks_and_python_alone_knows_no_rank(monkeypatch):
    monkeypatch.setenv("RANK", "7")  # as if this process were started by a launcher
    alone = launched_script.run_in_folder("python train.py", SCRIPT)
    assert (alone.exit_code, alone.ranks, alone.error) == (1, (), "KeyError: 'RANK'")
    launch = launched_script.run_in_folder("torchrun --standalone --nproc-per-node 2 train.py", SCRIPT)
    assert (launch.exit_code, launch.ranks, launch.error) == (0, ({"ranks": "2"},) * 2, "")


def test_other_programs_and_commands_that_do_not_end_are_errors():
    with pytest.raises(GpulabError, match="'mpirun' is not started here"):
        launched_script.run_in_folder("mpirun -n 2 train.py", SCRIPT)
    with pytest.raises(GpulabError, match="did not end within"):
        launched_script.run_in_folder("python train.py", "import time; time.sleep(60)", timeout_s=1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Traceback ...\n  x\nValueError: no rank\n", "ValueError: no rank"),
        ("[rank0]: KeyError: 'a'\nx.errors.ChildFailedError: \n=====\nFailures:\n=====\n", "[rank0]: KeyError: 'a'"),
        (
            "python: can't open file 'trian.py': [Errno 2]\n=====\n",
            "python: can't open file 'trian.py': [Errno 2]",
        ),
        ("run.py: error: unrecognized arguments: --x\n", "run.py: error: unrecognized arguments: --x"),
        ("killed\n", "killed"),
        ("", ""),
    ],
)
def test_the_line_of_an_error_output_that_says_what_is_wrong(text, line):
    assert launched_script.last_error(text) == line
