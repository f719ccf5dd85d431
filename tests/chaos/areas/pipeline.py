"""Damaged and odd traces through the whole pipeline: load, diagnose, report, compare, what-if, timeline, Perfetto.

Each ends in a value or a GpulabError, and no text of it moves the cursor of a terminal.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gpulab
from tests.chaos.program import Log, Outcome, Program
from tests.support import fuzz

# Anything that a terminal interprets, or that reorders a line.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ODD_NUMBERS = (0, -1, 9 * 10**18, 2**63 - 1, -(2**63), 2**64, 1e308, -1e308, 1e-308, float("nan"), float("inf"), 2**31)
ODD_TEXTS = (
    "",
    "\x1b[2J\x1b]0;title\x07",
    "\r\b\u202e",
    "<script>",
    "9" * 400,
    "x" * 100_000,
    "[[[[1]]]]",
    "NaN",
    "\ud800",
)
ODD_VALUES = (None, True, [], {}, [[1], "x"], [9 * 10**18, 2], [[2**62, 2**62]], *ODD_NUMBERS, *ODD_TEXTS)
VIEWS: dict[str, Callable[[Any], Any]] = {
    "diagnose": gpulab.diagnose,
    "report": gpulab.report,
    "compare": lambda run: gpulab.compare(run, run),
    "whatif": gpulab.whatif,
    "timeline": gpulab.timeline,
    "perfetto": lambda run: gpulab.to_perfetto(run, Path("trace.json")),
}


def make(number: int, dice: random.Random) -> Program:
    """Return the program that opens the input of this number."""
    _warm_up()
    if number % 2 and (extreme := _extreme_run_probes()) is not None:
        return _extreme(extreme, number, dice)
    view = sorted(VIEWS)[number % len(VIEWS)]
    if number % 3 == 0:
        name, text = fuzz.damaged(number, 0, _sound_inputs())
        label = f"damaged {name}, {view}"
    else:
        text, label = _odd_trace(dice)
        name = dice.choice(("odd.json", "odd.json", "odd \x1b[2J\r\u202e.json"))
        label += f", {view}"
    path = Path(name)

    def run(log: Log) -> Any:
        path.write_bytes(text)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                _open(log, path, view)
            except gpulab.GpulabError as error:
                _check(log, "error", str(error))
            finally:
                path.unlink()
                Path("trace.json").unlink(missing_ok=True)
        for warning in caught:
            _check(log, "warning", str(warning.message))

    return Program(name=label, recorder="pipeline", run=run, verdict=_verdict)


def _extreme(run_probes: Callable[..., list[Any]], number: int, dice: random.Random) -> Program:
    seed, start = dice.randrange(1000), dice.randrange(8)  # runs are made in order: the first ones are the cheapest

    def run(log: Log) -> Any:
        for problem in run_probes(seed, 1, start=start):
            log.note(f"{problem.view}: {problem.error}")

    return Program(name=f"extreme run {seed}, probe {start}", recorder="pipeline", run=run, verdict=_verdict)


def _open(log: Log, path: Path, view: str) -> None:
    run = gpulab.load(path)
    _check(log, "repr of the run", repr(run))
    result = VIEWS[view](run)
    _check(log, f"repr of {view}", repr(result))
    _check(log, f"text of {view}", str(result))
    for name in ("_repr_html_", "_repr_mimebundle_"):
        getattr(result, name, lambda: None)()


def _check(log: Log, label: str, text: str) -> None:
    if match := UNSAFE.search(text):
        log.note(f"{match[0]!r} in {label}")


def _verdict(log: Log, outcome: Outcome) -> str:
    if outcome.chain:
        return f"{outcome.chain[0][1]} instead of a GpulabError"
    return "; ".join(log.notes) or "ok"


def _odd_trace(dice: random.Random) -> tuple[bytes, str]:
    """A trace with a few odd values in its events, and a description."""
    events = json.loads(json.dumps(list(fuzz.events())))
    labels = []
    for _ in range(dice.choice((1, 1, 2, 4))):
        event = dice.choice(events)
        inside, arguments = dice.random() < 0.6, event.get("args")
        owner = arguments if inside and arguments and isinstance(arguments, dict) else event
        field = dice.choice(sorted(owner))
        value = dice.choice(ODD_VALUES)
        owner[field] = value
        if dice.random() < 0.6:  # in all events of its kind
            for other in events:
                target = other if owner is event else other.setdefault("args", {})
                if other.get("cat") == event.get("cat") and isinstance(target, dict):
                    target[field] = value
        labels.append(f"{field} of {event.get('cat')} = {repr(value)[:24]}")
    document = {"schemaVersion": 1, "record_shapes": 1, "baseTimeNanoseconds": 10**18, "traceEvents": events}
    if dice.random() < 0.2:
        document[dice.choice(("deviceProperties", "distributedInfo", "schemaVersion"))] = dice.choice(ODD_VALUES)
    if dice.random() < 0.3:
        name = dice.choice(("GPU", *ODD_TEXTS))
        gpu = {"id": 0, "name": name, "totalGlobalMem": 2**30, "numSms": 80, "computeMajor": 9}
        gpu[dice.choice(sorted(gpu))] = value = dice.choice(ODD_VALUES)
        document["deviceProperties"] = [gpu]
        labels.append(f"GPU {name[:24]!r} with {repr(value)[:24]}")
    return json.dumps(document).encode(errors="surrogatepass"), ", ".join(labels)


@cache
def _sound_inputs() -> list[tuple[str, bytes]]:
    return fuzz.originals()


@contextlib.contextmanager
def _working_in(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@cache
def _warm_up() -> None:
    """Import what the views need, once, before the children are forked."""
    with tempfile.TemporaryDirectory() as folder, _working_in(folder):
        path = Path("sound.json")
        path.write_bytes(dict(_sound_inputs())["compact.json"])
        run = gpulab.load(path)
        for view in VIEWS.values():
            repr(view(run))


@cache
def _extreme_run_probes() -> Callable[..., list[Any]] | None:
    """The probes of runs with extreme values through every view; None where the tests lack them."""
    try:
        return importlib.import_module("tests.support.pipeline_probes").run_probes
    except ModuleNotFoundError:
        return None
