"""Rules about the machine: clocks, sharing, the PCIe link, models on the CPU."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from gpulab.analysis.machine.clocks import clocks_under_load, counter_time_frac
from gpulab.analysis.machine.gpu_sharing import gpu_sharing
from gpulab.analysis.steps.detection import find_steps
from gpulab.capture.merge_traces import torch_settings
from gpulab.hardware.pcie import pinned_copy_bytes_per_s
from gpulab.rules import diagnose
from gpulab.rules.engine.finding import SUSPECT
from gpulab.run import Gpu, Machine, Model, Recording, Source
from gpulab.tables import EventKind
from tests.support.runs.cases import case_module, functions
from tests.support.runs.made_runs import MS, event, gpu_series, mark, run_of, stepped

CARD = Gpu(index=0, name="Made GPU", power_limit_w=700.0, power_default_w=700.0, sm_clock_max_mhz=1980.0)
SENSOR_RULES = {"clock_throttling", "shared_gpu", "memory_traffic"}


def case(rule, name):
    return dict(functions(case_module(rule)))[name]()


def finding(run, rule):
    return next(each for each in diagnose(run).findings if each.rule == rule)


def rules(run):
    return [each.rule for each in diagnose(run).findings]


def kernels(at):
    return [event(EventKind.KERNEL, "ampere_sgemm", at, 97)]


# Sensors.


def test_without_gpu_sensors_these_rules_are_not_judged():
    unjudged = {each.rule: each for each in diagnose(run_of(stepped(kernels))).unjudged}
    assert set(unjudged) >= SENSOR_RULES
    assert all("NVIDIA GPU" in unjudged[rule].fix for rule in SENSOR_RULES)


def test_missing_sensors_of_a_mig_instance_do_not_change_the_verdict():
    blind = gpu_series(lambda _: {"memory_used_bytes": 1e9})
    diagnosis = diagnose(run_of(stepped(kernels), gpu_rows=blind, machine=Machine(gpus=(CARD,))))
    assert SENSOR_RULES | {"slow_pcie_link"} <= {each.rule for each in diagnosis.unjudged}
    assert diagnosis.first.rule == "device_bound"


def test_thermal_throttling_is_found_without_events():
    sensors = gpu_series(lambda n: {"util_frac": 0.9, "sm_clock_mhz": 990.0, "thermal_held_s": n * 0.025})
    marks = [mark(100 * number, 1) for number in range(7)]
    run = run_of(marks=marks, windows=[], gpu_rows=sensors, machine=Machine(gpus=(CARD,)))
    hot = finding(run, "clock_throttling")
    assert "1,980" in hot.claim
    assert hot.confidence == "certain"
    assert hot.gain.bound == pytest.approx(1 / (1 - 0.5 * 0.9), rel=0.01), "half the clock, nine tenths of the time"


def test_heat_takes_precedence_over_the_power_limit():
    sensors = gpu_series(
        lambda n: {"util_frac": 1.0, "sm_clock_mhz": 1200.0, "thermal_held_s": n * 0.01, "power_held_s": n * 0.02}
    )
    run = run_of(stepped(kernels), gpu_rows=sensors, machine=Machine(gpus=(CARD,)))
    assert "hot" in finding(run, "clock_throttling").claim


def test_the_default_power_limit_is_never_the_verdict():
    run = case("clock_throttling", "provoked_as_worth_knowing_by_the_limit_it_comes_with")
    result = finding(run, "clock_throttling")
    assert result.informs_only
    assert result.gain is None
    assert diagnose(run).first.rule == "device_bound"


def test_a_counter_of_seconds_gives_a_share_of_time():
    series = gpu_series(lambda n: {"power_held_s": 7 + 0.005 * n})
    assert counter_time_frac(series, "power_held_s") == pytest.approx(0.2)
    assert counter_time_frac(series, "thermal_held_s") is None, "absent is not zero"
    assert counter_time_frac(gpu_series(lambda n: {"power_held_s": 7 - 0.005 * n}), "power_held_s") is None, (
        "it was set back"
    )


def test_clocks_of_an_idle_gpu_are_unknown():
    run = run_of(stepped(kernels), gpu_rows=gpu_series(lambda _: {"util_frac": 0.1}), machine=Machine(gpus=(CARD,)))
    assert clocks_under_load(run, find_steps(run)) is None


def test_throttling_before_the_first_step_is_ignored():
    # Hot while the data are prepared, for half a second; the steps begin after that.
    sensors = gpu_series(
        lambda n: {"util_frac": 0.9, "sm_clock_mhz": 1980.0, "throttle_bits": 0x20 if n < 20 else 0.0}, count=48
    )
    events = [delayed(each) for each in stepped(kernels)]
    assert "clock_throttling" not in rules(run_of(events, gpu_rows=sensors, machine=Machine(gpus=(CARD,))))


def delayed(row):
    return {**row, "start_ns": row["start_ns"] + 600 * MS}


def test_sharing_costs_in_proportion_to_the_gpu_time_of_a_step():
    def half(at):
        return [event(EventKind.KERNEL, "ampere_sgemm", at + 50, 50)]

    sensors = gpu_series(lambda _: {"util_frac": 0.5, "others_util_frac": 0.4})
    machine = Machine(gpus=(CARD,))
    busy, idle = (run_of(stepped(step), gpu_rows=sensors, machine=machine) for step in (kernels, half))
    assert finding(busy, "shared_gpu").gain.floor_ns == pytest.approx((1 - 0.4 * 0.97) * 100 * MS, rel=1e-3)
    assert finding(idle, "shared_gpu").gain.floor_ns == pytest.approx((1 - 0.4 * 0.5) * 100 * MS, rel=1e-3)


def test_a_gpu_busy_without_own_work_is_used_by_others():
    def step(at):
        return [event(EventKind.KERNEL, "ampere_sgemm", at, 400)]

    sensors = gpu_series(lambda _: {"util_frac": 0.6}, count=480)
    run = run_of(stepped(step, step_ms=2000.0), gpu_rows=sensors, machine=Machine(gpus=(CARD,)))
    usage = gpu_sharing(run, find_steps(run))
    assert (usage.util_frac, usage.listed) == (pytest.approx(0.6), False)
    sensors = finding(run, "shared_gpu")
    assert sensors.confidence == "suspect"


def test_the_drivers_process_list_takes_precedence_over_unaccounted_use():
    run = case("shared_gpu", "provoked_as_a_suspicion_by_memory_that_nobody_here_holds")
    listed = gpu_series(lambda _: {"util_frac": 0.9, "others_util_frac": 0.0, "others_memory_bytes": 0.0})
    assert "shared_gpu" not in rules(replace(run, gpu_rows=listed))


# The link.


def test_the_cost_of_a_slow_link_is_the_lost_copy_time():
    result = finding(case("slow_pcie_link", "provoked_by_a_link_with_a_quarter_of_its_lanes"), "slow_pcie_link")
    copied_ms, best, now = 200 / 6, pinned_copy_bytes_per_s(4, 16), 6e9
    assert result.gain.floor_ns == pytest.approx((100 - copied_ms * (1 - now / best)) * MS, rel=1e-3)
    assert re.findall(r"PCIe (\d) x(\d+)", result.claim) == [("4", "4"), ("4", "16")]


# The place.


def test_a_model_on_the_cpu_is_the_first_finding_and_uses_its_name():
    result = diagnose(case("model_on_cpu", "provoked_by_a_model_whose_parameters_lie_on_the_cpu")).first
    assert result.rule == "model_on_cpu"
    assert 'net = net.to("cuda")' in result.fix
    assert result.confidence == "certain"


def test_a_model_on_the_gpu_without_recorded_kernels_is_not_reported():
    run = case("model_on_cpu", "provoked_by_products_on_the_cpu_and_no_kernel_at_all")
    assert "model_on_cpu" not in rules(replace(run, models=(Model(kind="ResNet", device="cuda"),)))
    blind = Recording(windows_ns=run.recording.windows_ns, activities=("cpu",))
    assert "model_on_cpu" not in rules(replace(run, recording=blind))


def test_a_machine_without_a_gpu_is_not_reported():
    run = case("model_on_cpu", "provoked_by_a_model_whose_parameters_lie_on_the_cpu")
    assert "model_on_cpu" not in rules(replace(run, machine=Machine(cores_allowed=8.0)))


def test_how_many_gpus_pytorch_sees_is_recorded():
    torch = pytest.importorskip("torch")
    facts = torch_settings()
    assert facts["cuda_devices"] == str(torch.cuda.device_count())
    assert facts["cuda"] == str(torch.cuda.is_available())


def test_missing_sensor_values_make_no_finding():
    silent = gpu_series(lambda _: {"util_frac": 0.99})
    run = run_of(stepped(kernels), gpu_rows=silent, machine=Machine(gpus=(CARD,)))
    assert np.isnan(silent["others_util_frac"]).all()
    assert not SENSOR_RULES & set(rules(run))


def test_every_number_of_a_finding_is_finite():
    for rule in (*SENSOR_RULES, "slow_pcie_link", "model_on_cpu"):
        for name, make in functions(case_module(rule)):
            if name.startswith("provoked"):
                numbers = finding(make(), rule).numbers
                assert all(isinstance(value, float) and math.isfinite(value) for value in numbers.values())


def test_a_model_on_the_cpu_is_reported_for_measured_and_virtual_runs_only():
    run = case("model_on_cpu", "provoked_by_products_on_the_cpu_and_no_kernel_at_all")
    assert "model_on_cpu" in rules(replace(run, source=Source(how="virtual", device="H100")))
    assert "model_on_cpu" not in rules(replace(run, source=Source(how="recorded", device="H100")))


# Cores that other programs use, too.


def test_a_gain_on_shared_cores_starts_from_the_mean_step_and_ends_near_the_fast_ones():
    gain = finding(case_module("shared_cpu").uneven(), "shared_cpu").gain
    assert gain.is_mean
    assert gain.step_ns == pytest.approx(30 * MS, rel=0.02)
    assert gain.floor_ns < gain.best_ns < 10 * MS < gain.worst_ns < gain.step_ns


def test_uneven_steps_alone_are_no_proof_of_waits_for_cores():
    """They may differ for another reason, such as the lengths of texts."""
    answer = finding(case_module("shared_cpu").uneven(parallel_ms=0.008), "shared_cpu")
    assert answer.informs_only
    assert answer.confidence == SUSPECT
    assert answer.gain.worst_speedup == 1.0


@pytest.mark.parametrize("operators", [1, 12])
def test_the_bound_on_shared_cores_is_finite(operators):
    gain = finding(case_module("shared_cpu").computing(operators=operators, op_ms=97 / operators), "shared_cpu").gain
    assert gain.step_ns / gain.floor_ns < 1000
