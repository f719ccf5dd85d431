"""Lesson 16: requests, a queue, shared GPUs, MIG profiles, allocations and idle processes."""

import itertools
import math

import numpy as np
import pytest

import gpulab
from gpulab.errors import GpulabError
from gpulab.lessons.course.machine.n16_scheduling_and_sharing import RIGHT_MODES, check_modes
from gpulab.lessons.labs.machine.scheduling import (
    cluster_queue,
    core_wait,
    gpu_sharing,
    idle_week,
    job_requests,
    mig_profiles,
    team_allocation,
)
from gpulab.lessons.labs.machine.scheduling.cluster_queue import GpuPool, QueuedJob, find_gpus, run_queue

GIB = 2**30
USE = job_requests.ProgramUse(gpus=2, workers=3, batch_bytes=20 * 2**20, host_gib=8, minutes=60)


# Requests.


def sbatch(*options, command="python x", after=""):
    return job_requests.parse_sbatch(
        "#!/bin/bash\n" + "\n".join(f"#SBATCH {o}" for o in options) + f"\n\n{command}\n{after}"
    )


def rules(request, use=USE):
    return {problem.rule for problem in job_requests.find_problems(request, use)}


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("90:30", 90.5),
        ("1:30:00", 90),
        ("2-0", 2880),
        ("2-12", 3600),
        ("2-00:30", 2910),
        ("1-01:01:30", 1501.5),
    ],
)
def test_time_limits_as_the_manual_of_sbatch_writes_them(text, minutes):
    assert job_requests.slurm_minutes(text) == minutes


@pytest.mark.parametrize(
    ("options", "gpus", "cores", "gib"),
    [
        (["--gres=gpu:2", "--cpus-per-task=4", "--mem=8G"], 2, 4, 8),
        (["--nodes=2", "--gres=gpu:h100:4,license:1", "--mem=512"], 8, 1, 0.5),
        (["--ntasks=2", "--gpus-per-task=1", "-c", "3", "--mem-per-gpu=4G"], 2, 6, 8),
        (["--gpus=a100:3 --cpus-per-gpu=8", "--mem-per-cpu=1G"], 3, 24, 24),
        (["-N 2", "--gpus-per-node=4", "--gres=gpu"], 2, 1, None),
        (["-G h100:2", "-c 5"], 2, 5, None),
    ],
)
def test_options_of_sbatch_are_added_up(options, gpus, cores, gib):
    request = sbatch(*options)
    assert (request.gpus, request.cores) == (gpus, cores)
    assert request.memory_bytes == (None if gib is None else gib * GIB)
    assert request.mistakes == ()


def test_a_request_that_matches_the_use_has_no_problem_and_each_deviation_has_one():
    good = {"--gres": "gpu:2", "--cpus-per-task": "4", "--mem": "8G", "--time": "2:00:00"}
    assert rules(sbatch(*(f"{name}={value}" for name, value in good.items()))) == set()
    deviations = {
        "idle GPUs": {"--gres": "gpu:8"},
        "too few GPUs": {"--gres": "gpu:1"},
        "too few cores": {"--cpus-per-task": "3"},
        "too little memory": {"--mem": "7G"},
        "time limit too long": {"--time": "4:00:00"},
        "time limit too short": {"--time": "30"},
    }
    for rule, change in deviations.items():
        assert rules(sbatch(*(f"{name}={value}" for name, value in (good | change).items()))) == {rule}
    for rule, name in (("no memory", "--mem"), ("no time limit", "--time")):
        assert rules(sbatch(*(f"{key}={value}" for key, value in good.items() if key != name))) == {rule}


def test_mistakes_in_a_script_are_named():
    assert "ignored option" in rules(sbatch("--gres=gpu:2", after="#SBATCH --mem=8G"))
    assert "conflict" in rules(sbatch("--gpus=2", "--cpus-per-gpu=2", "--cpus-per-task=2"))
    assert "conflict" in rules(sbatch("--gpus-per-task=2"))
    assert "not readable" in rules(sbatch("--mem=lots"))
    assert "not readable" in rules(sbatch("--cpus-per-task=four"))


def test_what_is_not_readable_hides_problems_that_follow_from_it():
    problems = job_requests.find_problems(sbatch("--gres=gpu:2", "--time=8h"), USE)
    assert [(problem.rule, problem.text) for problem in problems] == [
        ("not readable", "argument -t/--time: invalid value: '8h'")
    ]
    problems = job_requests.find_problems(pod({"nvidia.com/gpu": 2, "memory": "9GB"}), USE)
    assert [problem.rule for problem in problems] == ["not readable"]
    assert "'9GB' is not a quantity" in problems[0].text


def test_tasks_are_programs_not_workers_and_no_memory_is_all_memory():
    assert rules(sbatch("--gres=gpu:2", "--ntasks=4", "--mem=0", "--time=60")) == {"too many tasks"}


@pytest.mark.parametrize(
    ("command", "is_right"),
    [
        ("srun python x.py", False),
        ("srun --mem=1G \\\n  python x.py", False),
        ("srun --cpus-per-task=4 python x.py", True),
        ("srun \\\n  -c4 python x.py", True),
        ("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun python x.py", True),
        ("python x.py", True),
    ],
)
def test_srun_does_not_inherit_the_cores_of_a_task(command, is_right):
    assert ("cores not passed on" in rules(sbatch("-c 4", command=command))) is not is_right
    assert "cores not passed on" not in rules(sbatch("--cpus-per-gpu=4", "-G 1", command=command))
    assert "cores not passed on" not in rules(sbatch("-c 1", command=command))


def pod(limits, requests=None, volume=None):
    container = {"resources": {"limits": limits} | ({"requests": requests} if requests else {})}
    spec = {"containers": [container]}
    if volume is not None:
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
        spec["volumes"] = [{"name": "shm", "emptyDir": volume}]
    return job_requests.parse_pod({"spec": spec})


def test_a_pod_with_a_volume_in_memory_has_no_problem_and_one_without_has_64_mib():
    limits = {"nvidia.com/gpu": 2, "cpu": "4000m", "memory": "9Gi"}
    assert rules(pod(limits, volume={"medium": "Memory", "sizeLimit": "1Gi"})) == set()
    assert pod(limits).shm_bytes == 64 * 2**20 < USE.shared_bytes == 3 * 2 * 20 * 2**20
    assert rules(pod(limits)) == {"too little shared memory"}
    assert rules(pod(limits, volume={"medium": "Memory"})) == set()  # limited by the memory of the pod only
    no_memory = pod({"nvidia.com/gpu": 2, "cpu": "4"}, volume={"medium": "Memory"})
    assert rules(no_memory) == {"no memory"}
    assert rules(pod(limits, volume={})) == {"too little shared memory"}  # on disk, not in memory
    assert rules(pod(limits, volume={"medium": "Memory", "sizeLimit": "2Gi"})) == {"too little memory"}


def test_gpus_of_a_pod_belong_in_limits_as_whole_numbers():
    rest = {"cpu": "4", "memory": "9Gi"}
    assert "GPU not in limits" in rules(pod(rest, requests={"nvidia.com/gpu": 2}))
    assert "GPU request is not the limit" in rules(pod(rest | {"nvidia.com/gpu": 2}, requests={"nvidia.com/gpu": 1}))
    assert "part of a GPU" in rules(pod(rest | {"nvidia.com/gpu": "500m"}))
    assert job_requests.parse_pod({}).gpus == 0


# Cores.


def test_workers_of_a_process_with_one_core_share_it():
    one = core_wait.epochs_with_cores([1], rounds=1)[1]
    assert one.used == 1
    assert one.suggested == 1
    assert one.wall_s >= core_wait.ITEMS * core_wait.ITEM_CPU_S
    assert 0 < one.wait_frac < 1


# The queue.


def job(name, submit, gpus, minutes, limit=None, share=1.0):
    return QueuedJob(name=name, submit_min=submit, gpus=gpus, share=share, minutes=minutes, limit_min=limit or minutes)


def backfill(pool, first, candidate):
    return pool.planned_start(first, also=candidate) <= pool.planned_start(first)


def starts(outcome):
    return {one.job.name: one.start_min for one in outcome.started}


def test_a_queue_by_hand():
    """Two GPUs: a holds one for 10 minutes, b needs both, c fits beside a and ends in time, d does not."""
    jobs = [job("a", 0, 1, 10), job("b", 1, 2, 5), job("c", 2, 1, 8), job("d", 3, 1, 8)]
    never, always = (lambda *_: False), (lambda *_: True)
    assert starts(run_queue(jobs, never, gpus=2)) == {"a": 0, "b": 10, "c": 15, "d": 15}
    assert starts(run_queue(jobs, backfill, gpus=2)) == {"a": 0, "b": 10, "c": 2, "d": 15}
    late = run_queue([*jobs[:2], job("c", 2, 1, 12), job("d", 3, 1, 20)], always, gpus=2)
    assert starts(late) == {"a": 0, "b": 30, "c": 2, "d": 10}
    assert late.late_heads == 1


def test_long_time_limits_make_backfill_worse_but_not_useless():
    jobs = cluster_queue.generated_jobs()
    short, long, strict = (
        run_queue(some, rule)
        for some, rule in (
            (jobs, backfill),
            (cluster_queue.with_limits(jobs, 7 * 24 * 60), backfill),
            (jobs, lambda *_: False),
        )
    )
    assert short.mean_wait_min < long.mean_wait_min / 1.5 < strict.mean_wait_min / 3
    assert long.wait_of_min(8) > strict.wait_of_min(8)


def test_a_small_request_blocks_a_gpu_for_8_gpu_jobs_as_much_as_a_whole_one():
    jobs = cluster_queue.generated_jobs()
    tiny = cluster_queue.with_requests(jobs, lambda one: one.gpus if one.gpus > 1 else 0.01)
    large = {one.name for one in jobs if one.gpus == 8}
    before, after = (
        {name: start for name, start in starts(run_queue(some, backfill)).items() if name in large}
        for some in (jobs, tiny)
    )
    assert before == after
    assert run_queue(tiny, backfill, gpus=17).wait_of_min(8) < 0.5 * run_queue(jobs, backfill).wait_of_min(8)


def test_a_job_with_a_long_time_limit_does_not_fit_into_the_gap():
    jobs = [job("a", 0, 1, 10), job("b", 1, 2, 5), job("c", 2, 1, 8, limit=9)]
    assert starts(run_queue(jobs, backfill, gpus=2))["c"] == 15


def test_no_gpu_is_ever_given_away_twice_and_every_job_runs_once():
    rng = np.random.default_rng(5)
    sizes = [0.25, 0.5, 1, 2, 4]
    for rule in (backfill, lambda *_: False, lambda *_: True):
        jobs = [
            job(f"{n}", int(rng.integers(0, 300)), float(rng.choice(sizes)), int(rng.integers(1, 60)), 60)
            for n in range(80)
        ]
        outcome = run_queue(jobs, rule, gpus=4)
        assert sorted(starts(outcome)) == sorted(one.name for one in jobs)
        assert all(one.start_min >= one.job.submit_min for one in outcome.started)
        for minute in range(outcome.end_min):
            load = np.zeros(4)
            for one in outcome.started:
                if one.start_min <= minute < one.end_min:
                    load[list(one.gpu_numbers)] += one.amount
            assert load.max(initial=0) <= 1 + 1e-9


def test_backfill_never_delays_a_first_job_and_strict_order_is_kept_without_it():
    for seed in range(4):
        jobs = cluster_queue.generated_jobs(120, seed)
        assert run_queue(jobs, backfill).late_heads == 0
        in_order = run_queue(jobs, lambda *_: False)
        by_submit = [
            one.start_min for one in sorted(in_order.started, key=lambda one: (one.job.submit_min, one.job.name))
        ]
        assert by_submit == sorted(by_submit)


def test_planned_start_is_that_of_a_search_minute_by_minute():
    rng = np.random.default_rng(2)
    for _ in range(30):
        pool = GpuPool(4)
        for n in range(6):
            one = job(f"{n}", 0, float(rng.choice([0.5, 1, 2])), 1, int(rng.integers(1, 40)))
            if pool.fits(one):
                pool.start(one)
        wanted = job("first", 0, float(rng.choice([0.5, 1, 2, 3, 4])), 1)
        for minute in range(50):
            free = np.ones(4)
            for one in pool.running:
                if one.latest_end_min > minute:
                    free[list(one.gpu_numbers)] -= one.amount
            if find_gpus(free.tolist(), wanted.gpus) is not None:
                break
        assert pool.planned_start(wanted) == minute


def test_a_part_of_a_gpu_goes_where_the_least_remains_and_whole_ones_need_empty_gpus():
    assert find_gpus([1.0, 0.5, 0.75], 0.5) == (1,)
    assert find_gpus([1.0, 0.5, 1.0], 2) == (0, 2)
    assert find_gpus([1.0, 0.5, 0.9], 2) is None


def test_shares_of_gpu_time_by_hand():
    outcome = run_queue([job("a", 0, 1, 10, share=0.5), job("b", 0, 2, 10, share=1.0)], backfill, gpus=4)
    assert outcome.reserved_frac == 30 / 40
    assert outcome.used_frac == 25 / 40
    parts = run_queue([job("a", 0, 0.5, 10, share=0.5)], backfill, gpus=1)
    assert parts.reserved_frac == parts.used_frac == 0.5


# Sharing.


def test_what_the_sharing_modes_must_obey():
    outcomes = gpu_sharing.share_in_all_modes()
    alone, sliced, mps, mig = (outcomes[mode] for mode in gpu_sharing.MODES)
    assert alone.median_ms == alone.longest_ms == pytest.approx(gpu_sharing.KERNEL_MS)
    assert mig.longest_ms == pytest.approx(gpu_sharing.KERNEL_MS)  # 12 % of the SMs, an instance has 12.1 %
    bound = 6 * (gpu_sharing.SLICE_MS + gpu_sharing.SWITCH_MS) + gpu_sharing.SWITCH_MS + gpu_sharing.KERNEL_MS
    assert max(mps.longest_ms, gpu_sharing.KERNEL_MS) < sliced.longest_ms <= bound
    assert all(len(one.kernel_ms) == 6 * gpu_sharing.STEPS for one in outcomes.values())
    # The GPU cannot do more than a tick of work a tick: the total is at least the work of all kernels.
    bursts = gpu_sharing.STEPS // gpu_sharing.BURST_EVERY
    work_ms = bursts * gpu_sharing.BURST_MS + (7 * gpu_sharing.STEPS - bursts) * gpu_sharing.KERNEL_MS
    assert sliced.total_ms >= work_ms
    assert alone.total_ms > 6 * sliced.steady_ms * 0.5


def in_turn(now_ms):
    return now_ms // (gpu_sharing.SLICE_MS + gpu_sharing.SWITCH_MS) % gpu_sharing.JOBS


def test_nobody_owns_a_gpu_of_vgpus_with_best_effort_so_it_is_time_sliced():
    assert gpu_sharing.share_vgpus(lambda now_ms: None) == gpu_sharing.share_gpu("time slicing")


def test_with_fixed_shares_a_neighbour_changes_nothing_and_no_kernel_waits_longer_than_a_round():
    alone, busy = (gpu_sharing.share_vgpus(in_turn, machines) for machines in (gpu_sharing.JOBS - 1, gpu_sharing.JOBS))
    assert alone.kernel_ms == busy.kernel_ms
    round_ms = gpu_sharing.JOBS * (gpu_sharing.SLICE_MS + gpu_sharing.SWITCH_MS)
    assert gpu_sharing.KERNEL_MS <= busy.median_ms < round_ms / 2
    assert busy.longest_ms <= round_ms + gpu_sharing.KERNEL_MS
    assert len(busy.kernel_ms) == 6 * gpu_sharing.STEPS


def test_a_machine_that_never_owns_the_gpu_is_an_error():
    with pytest.raises(GpulabError, match="Machine 1 is not done"):
        gpu_sharing.share_vgpus(lambda now_ms: 0)


# MIG.


def test_profiles_have_memory_and_multiprocessors_in_their_order():
    sizes = [(one.compute, one.memory) for one in mig_profiles.H100_PROFILES]
    assert sizes == sorted(sizes)
    for one in mig_profiles.H100_PROFILES:
        assert one.instances == min(7 // one.compute, 8 // one.memory)
        assert one.gib < int(one.name.partition(".")[2].removesuffix("gb"))
        assert one.sms <= mig_profiles.ALL_SMS


def test_which_profiles_fit_on_one_gpu():
    profiles = {one.name: one for one in mig_profiles.H100_PROFILES}

    def fit(*names):
        return mig_profiles.fit_on_one_gpu(profiles[name] for name in names)

    assert fit(*["1g.10gb"] * 7)
    assert not fit(*["1g.10gb"] * 8)
    assert fit("3g.40gb", "4g.40gb")
    assert fit("2g.20gb", "2g.20gb", "3g.40gb")
    assert not fit("3g.40gb", "3g.40gb", "1g.10gb")  # memory
    assert not fit("4g.40gb", "4g.40gb")
    assert not fit("7g.80gb", "1g.10gb")


# Allocations.


def test_allocations_by_hand():
    needs = {"team": np.array([2.0] * 6 + [3.0, 1.0, 1.0])}
    assert team_allocation.allocate(team_allocation.keep_all, needs).idle_gpu_h == pytest.approx((5 + 7 + 7) / 6)
    follow = team_allocation.allocate(team_allocation.follow_need, needs)
    assert (follow.moves, follow.missing_gpu_h) == (3, pytest.approx(1 / 6))  # 8 -> 2 -> 3 -> 1
    assert follow.idle_gpu_h == pytest.approx(2 / 6)


def test_a_rule_cannot_give_more_than_there_are_or_less_than_none():
    needs = team_allocation.generated_needs()
    assert all(series.min() >= 0 and series.max() <= team_allocation.STATIC_GPUS for series in needs.values())
    assert team_allocation.allocate(lambda gpus, recent: 99).moves == 0
    assert team_allocation.allocate(lambda gpus, recent: -5).idle_gpu_h == 0


# Idle processes.


def test_idle_minutes_are_counted_one_by_one():
    stay = idle_week.ProcessStay(
        name="x", user="u", gpu=0, first_min=0, use=np.array([0.0, 0.9, 0.0, 0.0, 0.5, 0.0]), memory_gib=1
    )
    count, expected = 0, []
    for use in stay.use:
        count = 0 if use >= idle_week.IDLE_FRAC else count + 1
        expected.append(count)
    assert stay.idle_min.tolist() == expected


def test_a_stop_returns_what_would_have_been_idle_and_knows_who_works_again():
    use = np.array([0.9] * 10 + [0.0] * 120 + [0.9] * 10)
    stay = idle_week.ProcessStay(name="x", user="u", gpu=0, first_min=5, use=use, memory_gib=1)
    (stopped,) = idle_week.reap(lambda state: state.idle_min >= 60, [stay]).stopped
    assert stopped.would_have_worked
    assert stopped.at_min == 5 + 69
    assert stopped.returned_h == 1
    outcome = idle_week.reap(lambda state: state.idle_min >= 60, [stay])
    assert (outcome.returned_h, outcome.wrong, outcome.idle_h) == (0, ("x",), 2)
    assert idle_week.reap(lambda state: state.idle_min > 120, [stay]).stopped == ()


def test_the_history_of_the_week_has_the_hours_of_its_processes(tmp_path):
    path = tmp_path / "watch.sqlite"
    idle_week.write_idle_week(path)
    report = {one.label: one for one in idle_week.process_report(path)}
    for stay in idle_week.generated_stays():
        usage = report[f"{stay.name} of {stay.user}"]
        assert usage.held_h == pytest.approx(len(stay.use) / 60)
        assert usage.idle_h == pytest.approx((stay.use < idle_week.IDLE_FRAC).sum() / 60)
        assert usage.used_h == pytest.approx(stay.use.sum() / 60)
    assert "explore.ipynb of bob" in str(gpulab.history("7d", path=path))


# Situations.


def test_only_the_right_assignment_of_modes_is_accepted():
    assert check_modes(RIGHT_MODES) is None
    right = [
        modes
        for modes in itertools.permutations(RIGHT_MODES.values())
        if not check_modes(dict(zip(RIGHT_MODES, modes, strict=True)))
    ]
    assert len(right) == 1
    assert check_modes(None)
    assert check_modes({})
    assert check_modes({situation: f" {mode.upper()}" for situation, mode in RIGHT_MODES.items()}) is None
    assert "one of MIG" in check_modes(RIGHT_MODES | {"strangers": "SLI"})
    assert math.factorial(len(RIGHT_MODES)) == 120
