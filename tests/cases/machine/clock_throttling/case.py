"""Reduced GPU clocks under load."""

from gpulab.run import Gpu, Machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import MS, event, gpu_series, run_of, stepped

CARD = Gpu(index=0, name="Made GPU", power_limit_w=700.0, power_default_w=700.0, sm_clock_max_mhz=1980.0)
LOWERED = Gpu(index=0, name="Made GPU", power_limit_w=350.0, power_default_w=700.0, sm_clock_max_mhz=1980.0)
IDLE, POWER, HEAT, BRAKE = 0x1, 0x4, 0x20, 0x80


def run(sensors, gpu=CARD, util=0.95):
    events = stepped(lambda at: [event(EventKind.KERNEL, "ampere_sgemm", at, 97)])
    usual = {"util_frac": util, "sm_clock_mhz": 1980.0, "throttle_bits": 0.0, "power_w": 500.0, "temperature_c": 60.0}
    samples = gpu_series(lambda number: {**usual, **sensors(number)})
    return run_of(events, gpu_rows=samples, machine=Machine(gpus=(gpu,), cores_allowed=8.0))


def throttled_seconds(number, share):
    """A counter of seconds that grows by this share of the time."""
    return 100 + number * 25 * MS / 1e9 * share


def provoked_by_heat_that_the_driver_counts():
    return run(lambda n: {"sm_clock_mhz": 1500.0, "temperature_c": 91.0, "thermal_held_s": throttled_seconds(n, 0.8)})


def provoked_by_heat_that_only_the_samples_tell_of():
    return run(lambda n: {"sm_clock_mhz": 1980 - 30 * n, "throttle_bits": HEAT if n > 5 else 0.0})


def provoked_by_a_power_limit_that_was_lowered():
    return run(
        lambda n: {
            "sm_clock_mhz": 1200.0,
            "power_w": 350.0,
            "throttle_bits": POWER,
            "power_held_s": throttled_seconds(n, 1.0),
        },
        LOWERED,
    )


def provoked_by_the_supply_that_asks_for_less():
    return run(lambda _: {"sm_clock_mhz": 1100.0, "throttle_bits": BRAKE})


def provoked_as_worth_knowing_by_the_limit_it_comes_with():
    return run(lambda n: {"sm_clock_mhz": 1500.0, "power_w": 698.0, "power_held_s": throttled_seconds(n, 0.9)})


def spared_because_it_runs_as_fast_as_it_can():
    return run(lambda _: {"power_held_s": 100.0, "thermal_held_s": 3.0})


def spared_because_its_clocks_are_low_only_while_it_idles():
    return run(lambda _: {"sm_clock_mhz": 345.0, "throttle_bits": IDLE}, util=0.05)


def spared_because_a_limit_that_was_lowered_is_not_reached():
    return run(lambda _: {"power_w": 200.0, "power_held_s": 100.0}, LOWERED)


def spared_because_a_counter_that_outruns_the_clock_is_in_an_unknown_unit():
    return run(lambda n: {"thermal_held_s": throttled_seconds(n, 1000.0)})


def spared_because_the_sensors_do_not_tell():
    return run(lambda _: {"throttle_bits": float("nan"), "sm_clock_mhz": float("nan")})
