"""A simulated graphics card that heats up and throttles, with the sensor readings of a real driver.

The card loses heat in proportion to its temperature above the room; power grows with load and clock; a governor lowers
the clock while the card is too hot or draws too much power, and raises it again afterwards. Nothing here was measured:
it is a first-order model with round numbers, meant only for learning to read the sensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpulab.extras import require_extra
from gpulab.run import Gpu, Machine, Recording, Run, Source
from gpulab.tables import GPU_SAMPLES, MARKS, MarkKind

if TYPE_CHECKING:
    import pandas as pd

TICK_S = 0.1  # time step of the model
AMBIENT_C, HOT_C, COOL_C = 30.0, 87.0, 84.0  # room; throttles from HOT_C on; recovers below COOL_C
TIME_CONSTANT_S = 8.0  # time constant: about two thirds of a temperature change happen in it
IDLE_W, DYNAMIC_W, POWER_LIMIT_W = 90.0, 560.0, 700.0  # 650 W at full load and full clock
FULL_MHZ, MIN_MHZ, DOWN_MHZ, UP_MHZ = 1980.0, 600.0, 15.0, 15.0  # the governor's steps are per tick
STEP_S = 0.5  # a training step at full load and full clock
DUSTY_THERMAL_C_PER_W = 0.12  # thermal resistance of a card whose fans are full of dust
POWER, HEAT = 0x4, 0x20  # NVML: software power cap; software thermal slowdown
REASONS = {0: "-", POWER: "power", HEAT: "heat"}

Phase = tuple[float, float]  # seconds, load 0-1
LOADS: tuple[Phase, ...] = ((10.0, 0.2), (50.0, 1.0), (30.0, 0.2))


@dataclass(kw_only=True)
class CardModel:
    """The state of the simulated card; `tick` advances it."""

    thermal_c_per_w: float  # thermal resistance: 0.07 with clean fans, more with dust
    power_limit_w: float = POWER_LIMIT_W
    at_s: float = 0.0
    temperature_c: float = AMBIENT_C + 10
    clock_mhz: float = FULL_MHZ
    reason: int = 0
    throttled_s: dict[int, float] = field(default_factory=lambda: {POWER: 0.0, HEAT: 0.0})

    def watts(self, load: float) -> float:
        """Return the present power. Voltage falls with the clock, so power grows faster than the clock."""
        return IDLE_W + DYNAMIC_W * load * math.pow(self.clock_mhz / FULL_MHZ, 2.5)

    def tick(self, load: float) -> None:
        """Advance the card by `TICK_S` (a tenth of a second) at this load."""
        power_w = self.watts(load)
        self.temperature_c += (
            (AMBIENT_C + self.thermal_c_per_w * power_w - self.temperature_c) * TICK_S / TIME_CONSTANT_S
        )
        hot, over_limit = self.temperature_c >= HOT_C, power_w > self.power_limit_w
        cool, below_limit = self.temperature_c < COOL_C, power_w < 0.97 * self.power_limit_w
        if hot or over_limit:
            self.reason = HEAT if hot else POWER
            self.clock_mhz = max(MIN_MHZ, self.clock_mhz - DOWN_MHZ)
        elif cool and below_limit and self.clock_mhz < FULL_MHZ:
            self.clock_mhz = min(FULL_MHZ, self.clock_mhz + UP_MHZ)
        if self.clock_mhz >= FULL_MHZ:
            self.reason = 0
        if self.reason:
            self.throttled_s[self.reason] += TICK_S
        self.at_s += TICK_S


def simulate_card(
    *,
    name: str,
    thermal_c_per_w: float = 0.07,
    power_limit_w: float = POWER_LIMIT_W,
    loads: Sequence[Phase] = LOADS,
    every_s: float = 1.0,
) -> Run:
    """Simulate a card under these loads and return a run: a sensor reading every `every_s`, and the steps completed."""
    card = CardModel(thermal_c_per_w=thermal_c_per_w, power_limit_w=power_limit_w)
    readings: list[dict[str, float]] = []
    step_ends_ns: list[int] = []
    progress = 0.0  # of the current step
    for seconds, load in loads:
        for _ in range(round(seconds / TICK_S)):
            ticks = round(card.at_s / TICK_S)
            if ticks % round(every_s / TICK_S) == 0:
                readings.append(_reading(card, load))
            card.tick(load)
            progress += load * card.clock_mhz / FULL_MHZ * TICK_S / STEP_S
            if progress >= 1:
                step_ends_ns.append(round(card.at_s * 1e9))
                progress -= 1
    return _run(name, power_limit_w, readings, step_ends_ns, round(card.at_s * 1e9))


def throttled_interval(run: Run, reason: int) -> tuple[float, float] | None:
    """Return the first and last second with this throttle reason; None if it never occurs."""
    samples = run.gpu_samples
    bits = samples["throttle_bits"].to_numpy(np.int64)
    at_s = samples["at_ns"].to_numpy()[bits & reason != 0] / 1e9
    return (float(at_s[0]), float(at_s[-1])) if len(at_s) else None


def readings_table(*runs: Run, at_s: Sequence[int]) -> pd.DataFrame:
    """Compare the sensor readings of several cards: a row for each second, a group of columns for each card."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    tables = {}
    for run in runs:
        samples = run.gpu_samples.assign(second=lambda readings: (readings["at_ns"] // 1_000_000_000).astype(int))
        rows = samples.set_index("second").loc[list(at_s)]
        tables[run.name] = pd.DataFrame(
            {
                "util, %": (100 * rows["util_frac"]).round().astype(int),
                "MHz": rows["sm_clock_mhz"].round().astype(int),
                "W": rows["power_w"].round().astype(int),
                "°C": rows["temperature_c"].round().astype(int),
                "reason": [REASONS[int(bits)] for bits in rows["throttle_bits"]],
            }
        )
    return pd.concat(tables, axis=1)


def _reading(card: CardModel, load: float) -> dict[str, float]:
    """Return one row of sensor readings, as the driver would report them."""
    return {
        "at_ns": round(card.at_s * 1e9),
        "late_ns": 0,
        "device": 0,
        "util_frac": 1.0 if load >= 1 else load,
        "power_w": card.watts(load),
        "sm_clock_mhz": card.clock_mhz,
        "temperature_c": card.temperature_c,
        "throttle_bits": card.reason,
        "power_held_s": card.throttled_s[POWER],
        "thermal_held_s": card.throttled_s[HEAT],
    }


def _run(
    name: str, cap_w: float, readings: Sequence[dict[str, float]], step_ends_ns: Sequence[int], span_ns: int
) -> Run:
    absent = {column.name: float("nan") for column in GPU_SAMPLES.columns}
    columns = {key: [{**absent, **each}[key] for each in readings] for key in absent}
    steps = {column.name: [-1] * len(step_ends_ns) for column in MARKS.columns}
    steps |= {
        "kind": [int(MarkKind.USER)] * len(step_ends_ns),
        "start_ns": list(step_ends_ns),
        "end_ns": list(step_ends_ns),
    }
    steps |= {"yielded": [True] * len(step_ends_ns)}
    gpu = Gpu(
        index=0, name="simulated card", power_limit_w=cap_w, power_default_w=POWER_LIMIT_W, sm_clock_max_mhz=FULL_MHZ
    )
    return Run(
        name=name,
        source=Source(how="virtual", device="simulated card"),
        machine=Machine(gpus=(gpu,)),
        span_ns=span_ns,
        recording=Recording(level="sensors"),
        gpu_rows=GPU_SAMPLES.rows(columns),
        mark_rows=MARKS.rows(steps),
    )
