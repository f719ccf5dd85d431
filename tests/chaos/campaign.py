"""Run probes: two children each, a few at a time, and count what differs."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.child import run_child
from tests.chaos.comparison import differences
from tests.chaos.documented import documented_reason
from tests.chaos.program import Observation, Outcome, Program

LIMIT_S = 90.0  # a run that hangs; the slowest takes seconds on a loaded machine


@dataclass(frozen=True)
class Probe:
    """A program of an area; area, number and seed reproduce it."""

    area: str
    number: int
    make: Callable[[], Program]


@dataclass
class Defect:
    """A kind of difference, with the smallest program that shows it."""

    kind: str
    area: str
    number: int
    program: Program
    count: int = 1


@dataclass
class AreaTally:
    """What became of the probes of an area."""

    probes: int = 0
    identical: int = 0
    documented: int = 0
    defective: int = 0
    recorded: int = 0  # the recording became a run
    events: int = 0  # with events of the profiler
    reasons: Counter[str] = field(default_factory=Counter)
    defects: dict[str, Defect] = field(default_factory=dict)
    spent_s: float = 0.0

    def add(self, probe: Probe, program: Program, plain: Observation, recorded: Observation) -> list[str]:
        """Count a probe and return the kinds of its defects."""
        self.probes += 1
        self.recorded += "run" in recorded.recorded
        self.events += "events" in recorded.recorded
        reasons, kinds = set(), set()
        for difference in differences(program, plain, recorded):
            reason = documented_reason(program, difference, recorded)
            (kinds if reason is None else reasons).add(difference.kind if reason is None else reason)
        self.reasons.update(reasons)
        for kind in sorted(kinds):
            defect = self.defects.setdefault(kind, Defect(kind, probe.area, probe.number, program, 0))
            defect.count += 1
            if program.size < defect.program.size:
                defect.number, defect.program = probe.number, program
        if kinds:
            self.defective += 1
        elif reasons:
            self.documented += 1
        else:
            self.identical += 1
        return sorted(kinds)


def run_probes(probes: Iterable[Probe], *, jobs: int = 2) -> Iterator[tuple[Probe, Program, Observation, Observation]]:
    """Yield each probe with its plain and its recorded observation, as they end."""
    waiting = iter(probes)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, selectors.DefaultSelector() as selector:
        running: dict[int, _Pair] = {}
        serial = 0
        while True:
            while len(running) < jobs and (probe := next(waiting, None)) is not None:
                serial += 1
                pair = _Pair(probe, probe.make(), Path(folder) / str(serial))
                pair.start(selector)
                running[serial] = pair
            if not running:
                return
            selector.select(timeout=1.0)
            for key, pair in list(running.items()):
                if pair.advance(selector):
                    del running[key]
                    yield pair.probe, pair.program, *pair.observations


class _Pair:
    """The plain and the recorded run of a probe, one after the other."""

    def __init__(self, probe: Probe, program: Program, folder: Path) -> None:
        self.probe, self.program, self._folder = probe, program, folder
        self.observations: list[Observation] = []
        self._pid = self._pipe = -1
        self._text = b""
        self._began_s = 0.0

    def start(self, selector: selectors.BaseSelector) -> None:
        """Fork a child for the next run."""
        self._folder.mkdir()
        pipe, child_end = os.pipe()
        self._began_s, self._text = time.monotonic(), b""
        pid = os.fork()
        if pid == 0:
            try:
                os.close(pipe)
                run_child(self.program, self._folder, child_end, plain=not self.observations)
            finally:
                os._exit(70)  # never back into the campaign
        os.close(child_end)
        self._pid, self._pipe = pid, pipe
        os.set_blocking(pipe, False)
        selector.register(pipe, selectors.EVENT_READ)

    def advance(self, selector: selectors.BaseSelector) -> bool:
        """Read what the child has written; start the next run when it has ended. True when both have ended."""
        late = time.monotonic() - self._began_s > LIMIT_S
        ended = False
        while not ended:
            try:
                part = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                break
            ended = not part
            self._text += part
        # A worker that the program left running holds the pipe open.
        ended = ended or self._is_complete()
        if not (ended or late):
            return False
        selector.unregister(self._pipe)
        os.close(self._pipe)
        self.observations.append(self._end(hung=not ended))
        if len(self.observations) == 2:
            return True
        self.start(selector)
        return False

    def _is_complete(self) -> bool:
        if not self._text.endswith(b"}"):
            return False
        try:
            json.loads(self._text)
        except ValueError:
            return False
        return True

    def _end(self, *, hung: bool) -> Observation:
        """Reap the child and all it started; return its observation."""
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)
        if hung:
            return Observation(Outcome(), trouble="hung")
        try:
            return Observation.from_json(json.loads(self._text))
        except ValueError:
            if os.WIFSIGNALED(status):
                return Observation(Outcome(), trouble=f"the process ended with signal {os.WTERMSIG(status)}")
            return Observation(Outcome(), trouble=f"the harness ended with exit status {os.WEXITSTATUS(status)}")
