"""A program with a loop that is recorded as a session records it, until somebody kills it.

It prints the time at which each step ended, so that the test knows what a recovered run must contain.
"""

import sys
import threading
import time

from gpulab.capture.hooks.gc_and_compilation import StallRecorder
from gpulab.capture.spool.content import RecordingState
from gpulab.capture.spool.spool import Spool, rows_added
from gpulab.run import Loader, Machine
from gpulab.sensors import Sensors
from gpulab.tables import MARKS, MarkKind


class RecordedLoop:
    """Sensors, stalls, marks and a spool, connected as in a session."""

    def __init__(self, name="killed", level="trace", **options):
        self.began_ns = time.time_ns()
        self.marks, self.loaders = [], []
        self.stalls = StallRecorder()
        self.spool = Spool(name, level, **options)
        self.sensors = Sensors(on_tick=self.spool.write)

    def start(self):
        self.spool.begin(
            self.began_ns,
            (rows_added(MARKS, self.marks), self.sensors.new_rows, self.stalls.new_rows),
            self.state,
            machine=Machine(cpu="a CPU", memory_bytes=2**33),
        )
        self.stalls.install()
        self.sensors.start()

    def stop(self):
        self.sensors.stop()
        self.stalls.remove()
        self.spool.discard()

    def state(self):
        return RecordingState(loaders=tuple(self.loaders), facts={"threads": "2"}, phase="recording")

    def step(self):
        start_ns = time.time_ns()
        if not self.loaders:
            self.loaders.append(Loader(workers=2, dataset="Images"))
        time.sleep(0.004)
        end_ns = time.time_ns()
        self.marks.append((MarkKind.NEXT, start_ns, end_ns, 0, 0, True, 0, 0, 0, -1))
        return end_ns


if __name__ == "__main__":
    loop = RecordedLoop()
    loop.start()
    threading.excepthook = lambda problem: sys.stderr.write(str(problem))
    while True:
        sys.stdout.write(f"{loop.step()}\n")
        sys.stdout.flush()
