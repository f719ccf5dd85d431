"""Rules about the machine: clocks, sharing, the link, where the model computes."""

import math
from dataclasses import replace

import numpy as np
import pytest

from gpulab.analysis.machine.clocks import clocks, grown
from gpulab.analysis.machine.gpu_sharing import sharing
from gpulab.analysis.steps.detection import steps
from gpulab.capture.assembly import torch_facts
from gpulab.hardware.pcie import pinned_copy_bytes_per_s
from gpulab.rules import diagnose
from gpulab.run import Gpu, Machine, Model, Recording, Source
from gpulab.tables import Kind
from tests.support.runs.cases import case_module, functions
from tests.support.runs.made_runs import MS, event, gpu_series, mark, run_of, stepped

CARD = Gpu(index=0, name="Made GPU", power_limit_w=700.0, power_default_w=700.0, sm_clock_max_mhz=1980.0)
SENSED = {"clock_throttling", "shared_gpu", "memory_traffic"}


def case(rule, name):
    return dict(functions(case_module(rule)))[name]()


def finding(run, rule):
    return next(each for each in diagnose(run).findings if each.rule == rule)


def rules(run):
    return [each.rule for each in diagnose(run).findings]


def kernels(at):
    return [event(Kind.KERNEL, "ampere_sgemm", at, 97)]


# Sensors.


def test_without_gpu_sensors_these_are_not_judged_and_the_way_to_have_them_is_told():
    unjudged = {each.rule: each for each in diagnose(run_of(stepped(kernels))).unjudged}
    assert set(unjudged) >= SENSED
    assert all("NVIDIA GPU" in unjudged[rule].fix for rule in SENSED)


def test_what_a_mig_instance_cannot_tell_is_not_judged_and_spoils_no_verdict():
    blind = gpu_series(lambda _: {"memory_used_bytes": 1e9})
    diagnosis = diagnose(run_of(stepped(kernels), gpu_rows=blind, machine=Machine(gpus=(CARD,))))
    assert SENSED | {"slow_pcie_link"} <= {each.rule for each in diagnosis.unjudged}
    assert diagnosis.first.rule == "device_bound"


def test_sensors_alone_tell_of_heat_where_no_event_was_recorded():
    told = gpu_series(lambda n: {"util_frac": 0.9, "sm_clock_mhz": 990.0, "thermal_held_s": n * 0.025})
    marks = [mark(100 * number, 1) for number in range(7)]
    run = run_of(marks=marks, windows=[], gpu_rows=told, machine=Machine(gpus=(CARD,)))
    hot = finding(run, "clock_throttling")
    assert "1,980" in hot.claim
    assert hot.confidence == "certain"
    assert hot.gain.bound == pytest.approx(1 / (1 - 0.5 * 0.9), rel=0.01), "half the clock, nine tenths of the time"


def test_heat_is_named_before_the_power_limit_that_is_reached_as_well():
    told = gpu_series(
        lambda n: {"util_frac": 1.0, "sm_clock_mhz": 1200.0, "thermal_held_s": n * 0.01, "power_held_s": n * 0.02}
    )
    assert (
        "too hot"
        in finding(run_of(stepped(kernels), gpu_rows=told, machine=Machine(gpus=(CARD,))), "clock_throttling").claim
    )


def test_the_default_power_limit_is_worth_knowing_and_never_the_verdict():
    run = case("clock_throttling", "provoked_as_worth_knowing_by_the_limit_it_comes_with")
    told = finding(run, "clock_throttling")
    assert told.aside
    assert told.gain is None
    assert diagnose(run).first.rule == "device_bound"


def test_a_counter_of_seconds_is_read_as_a_share_of_the_time_between_its_readings():
    series = gpu_series(lambda n: {"power_held_s": 7 + 0.005 * n})
    assert grown(series, "power_held_s") == pytest.approx(0.2)
    assert grown(series, "thermal_held_s") is None, "absent is not zero"
    assert grown(gpu_series(lambda n: {"power_held_s": 7 - 0.005 * n}), "power_held_s") is None, "it was set back"


def test_clocks_of_a_gpu_never_seen_at_work_are_not_told():
    run = run_of(stepped(kernels), gpu_rows=gpu_series(lambda _: {"util_frac": 0.1}), machine=Machine(gpus=(CARD,)))
    assert clocks(run, steps(run)) is None


def test_what_runs_before_the_first_step_is_no_evidence_of_the_loop():
    # Hot while the data are prepared, for half a second; the steps begin after that.
    told = gpu_series(
        lambda n: {"util_frac": 0.9, "sm_clock_mhz": 1980.0, "throttle_bits": 0x20 if n < 20 else 0.0}, count=48
    )
    events = [replace_start(each) for each in stepped(kernels)]
    assert "clock_throttling" not in rules(run_of(events, gpu_rows=told, machine=Machine(gpus=(CARD,))))


def replace_start(each):
    return {**each, "start_ns": each["start_ns"] + 600 * MS}


def test_use_by_others_costs_as_much_of_the_step_as_the_gpu_works_in_it():
    def half(at):
        return [event(Kind.KERNEL, "ampere_sgemm", at + 50, 50)]

    told = gpu_series(lambda _: {"util_frac": 0.5, "others_util_frac": 0.4})
    machine = Machine(gpus=(CARD,))
    busy, idle = (run_of(stepped(step), gpu_rows=told, machine=machine) for step in (kernels, half))
    assert finding(busy, "shared_gpu").gain.floor_ns == pytest.approx((1 - 0.4 * 0.97) * 100 * MS, rel=1e-3)
    assert finding(idle, "shared_gpu").gain.floor_ns == pytest.approx((1 - 0.4 * 0.5) * 100 * MS, rel=1e-3)


def test_a_gpu_busy_while_this_process_asks_nothing_of_it_is_somebody_elses():
    def step(at):
        return [event(Kind.KERNEL, "ampere_sgemm", at, 400)]

    told = gpu_series(lambda _: {"util_frac": 0.6}, count=480)
    run = run_of(stepped(step, step_ms=2000.0), gpu_rows=told, machine=Machine(gpus=(CARD,)))
    found = sharing(run, steps(run))
    assert (found.util_frac, found.listed) == (pytest.approx(0.6), False)
    told = finding(run, "shared_gpu")
    assert told.confidence == "suspect"


def test_what_the_driver_s_lists_tell_is_believed_before_what_is_left_over():
    run = case("shared_gpu", "provoked_as_a_suspicion_by_memory_that_nobody_here_holds")
    listed = gpu_series(lambda _: {"util_frac": 0.9, "others_util_frac": 0.0, "others_memory_bytes": 0.0})
    assert "shared_gpu" not in rules(replace(run, gpu_rows=listed))


# The link.


def test_what_a_slow_link_costs_is_what_its_copies_lose():
    told = finding(case("slow_pcie_link", "provoked_by_a_link_with_a_quarter_of_its_lanes"), "slow_pcie_link")
    copied_ms, best, now = 200 / 6, pinned_copy_bytes_per_s(4, 16), 6e9
    assert told.gain.floor_ns == pytest.approx((100 - copied_ms * (1 - now / best)) * MS, rel=1e-3)
    assert "x4" not in told.claim
    assert "4 lanes; it could be PCIe 4 with 16" in told.claim


# The place.


def test_a_model_on_the_cpu_comes_before_everything_and_is_called_by_its_name():
    told = diagnose(case("model_on_cpu", "provoked_by_a_model_whose_parameters_lie_on_the_cpu")).first
    assert told.rule == "model_on_cpu"
    assert 'net = net.to("cuda")' in told.fix
    assert told.confidence == "certain"


def test_a_model_on_the_gpu_whose_kernels_were_not_recorded_is_not_accused():
    run = case("model_on_cpu", "provoked_by_products_on_the_cpu_and_no_kernel_at_all")
    assert "model_on_cpu" not in rules(replace(run, models=(Model(kind="ResNet", device="cuda"),)))
    blind = Recording(windows_ns=run.recording.windows_ns, activities=("cpu",))
    assert "model_on_cpu" not in rules(replace(run, recording=blind))


def test_a_laptop_without_a_gpu_is_not_told_to_use_one():
    run = case("model_on_cpu", "provoked_by_a_model_whose_parameters_lie_on_the_cpu")
    assert "model_on_cpu" not in rules(replace(run, machine=Machine(cores_allowed=8.0)))


def test_how_many_gpus_pytorch_sees_is_recorded():
    torch = pytest.importorskip("torch")
    facts = torch_facts()
    assert facts["cuda_devices"] == str(torch.cuda.device_count())
    assert facts["cuda"] == str(torch.cuda.is_available())


def test_no_sensor_that_is_silent_makes_a_finding():
    silent = gpu_series(lambda _: {"util_frac": 0.99})
    run = run_of(stepped(kernels), gpu_rows=silent, machine=Machine(gpus=(CARD,)))
    assert np.isnan(silent["others_util_frac"]).all()
    assert not SENSED & set(rules(run))


def test_every_number_of_a_finding_is_one():
    for rule in (*SENSED, "slow_pcie_link", "model_on_cpu"):
        for name, make in functions(case_module(rule)):
            if name.startswith("provoked"):
                numbers = finding(make(), rule).numbers
                assert all(isinstance(value, float) and math.isfinite(value) for value in numbers.values())


def test_a_model_on_the_cpu_is_told_of_where_it_was_run_and_on_a_virtual_gpu():
    run = case("model_on_cpu", "provoked_by_products_on_the_cpu_and_no_kernel_at_all")
    assert "model_on_cpu" in rules(replace(run, source=Source(how="virtual", device="H100")))
    assert "model_on_cpu" not in rules(replace(run, source=Source(how="recorded", device="H100")))
