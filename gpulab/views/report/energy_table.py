"""Energy, cost and CO2 of a recorded loop."""

from __future__ import annotations

from collections.abc import Iterator

from gpulab.analysis.machine.energy import Energy, loop_energy
from gpulab.hardware.prices import Prices, user_prices
from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.run_summary import idle_step_frac
from gpulab.views.sheet.sheet import Facts, Line, Section
from gpulab.wording import metric, money, number, percent, quantity

_J_PER_KWH, _HOUR_S = 3.6e6, 3600.0
MONTH_H = 730.0


def energy_section(diagnosis: Diagnosis) -> Section | None:
    """Return energy and cost of the loop; None if no GPU told its power."""
    run = diagnosis.run
    energy = loop_energy(run, diagnosis.steps, idle_step_frac(diagnosis))
    if energy is None:
        return None
    prices = user_prices()
    rows = (*_energy_rows(energy), *_cost_rows(run, energy, prices), *_saving_rows(diagnosis, energy, prices))
    return Section("Energy and cost", (Facts(tuple(rows)), Line(_method(energy, prices), soft=True)), folded=True)


def price_per_hour(run: Run, prices: Prices) -> float | None:
    """Return the price of all GPUs that the process sees, per hour; None if one of them has no known price."""
    hourly = [prices.per_hour(gpu.name) for gpu in run.machine.gpus]
    return None if not hourly or None in hourly else float(sum(price for price in hourly if price is not None))


def _energy_rows(energy: Energy) -> Iterator[tuple[str, str]]:
    yield (
        "GPU energy",
        f"{metric(energy.gpu_j, 'J')} (± {percent(energy.error_frac)}), {quantity(energy.mean_w, 'W')} mean",
    )
    if energy.step_j is not None:
        yield "per step", metric(energy.step_j, "J")
    if energy.sample_j is not None:
        yield "per sample", metric(energy.sample_j, "J")
        yield "per million samples", f"{number(energy.sample_j * 1e6 / _J_PER_KWH)} kWh"
    if energy.epoch_j is not None:
        yield "per epoch", f"{number(energy.epoch_j / _J_PER_KWH)} kWh, without evaluations"
    if energy.idle_j is not None:
        yield (
            "while the GPU did nothing",
            f"at least {metric(energy.idle_j, 'J')}, {percent(energy.idle_j / energy.gpu_j)}",
        )
    if energy.cpu_j is not None:
        yield "CPU energy", f"{metric(energy.cpu_j, 'J')}, all programs"


def _cost_rows(run: Run, energy: Energy, prices: Prices) -> Iterator[tuple[str, str]]:
    price = price_per_hour(run, prices)
    if price is not None:
        yield "price of the GPUs", f"{money(price, prices.currency)} per hour"
        if energy.samples_per_step and energy.step_j is not None:
            step_s = energy.step_j / energy.mean_w
            yield (
                "cost of a million samples",
                money(price * step_s / _HOUR_S * 1e6 / energy.samples_per_step, prices.currency),
            )
    if prices.co2_g_per_kwh is not None:
        co2_g = energy.gpu_j / _J_PER_KWH * prices.co2_g_per_kwh
        yield "CO2 of the GPU energy", f"{metric(co2_g, 'g')} at {number(prices.co2_g_per_kwh)} g/kWh"


def _saving_rows(diagnosis: Diagnosis, energy: Energy, prices: Prices) -> Iterator[tuple[str, str]]:
    """What the first fix would save in a month of training, by its predicted range."""
    price, first = price_per_hour(diagnosis.run, prices), diagnosis.first
    if price is None or first is None or first.gain is None or first.gain.worst_speedup <= 1:
        return
    saved = [price * MONTH_H * (1 - 1 / speedup) for speedup in (first.gain.worst_speedup, first.gain.best_speedup)]
    amounts = f"{money(saved[0], prices.currency)} to {money(saved[1], prices.currency)}"
    yield "the first fix saves", f"{amounts} in a month of such training ({number(MONTH_H)} h)"


def _method(energy: Energy, prices: Prices) -> str:
    return (
        f"From the first step to the last, all GPUs that this process sees, by the {energy.method}. Idle energy is the "
        f"idle time at the lowest power that was read. Cost: {prices.source}."
    )
