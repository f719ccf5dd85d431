"""How long the main thread is held inside the loop while gpulab records: `python benchmarks/holds.py [LOOP ...]`.

Ten loops of the wild corpus, in processes of their own: tiny steps, huge steps, no steps, frameworks.
A second thread looks at the stack of the main thread every 2 ms; a hold is a time in which gpulab is on it without a
break. If gpulab or PyTorch keeps the GIL, this thread cannot look: the time counts if gpulab is on the stack before and
after it. Hooks of a few microseconds are between two looks and do not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from gpulab.sensors.thread_frames import current_frame

ROOT = Path(__file__).parents[1]
PACKAGE = str(ROOT / "gpulab")
HOOKS = str(ROOT / "gpulab" / "capture" / "hooks")  # they call the function that they replace
LOOPS = (
    "tabular/mlp_regressor",  # 6,000 steps of 0.3 ms
    "rl/dqn",  # an environment between small updates
    "misc/maml",  # graphs of higher order
    "misc/style_transfer",  # LBFGS with a closure
    "vision/unet",  # few large operators
    "decoding/greedy",  # no optimizer, no DataLoader
    "timeseries/deepar",  # thousands of operators in a step
    "graph/message_lists",  # Python lists in every step
    "frameworks/lightning_plain",
    "frameworks/hf_trainer",
)
LEVELS = ("trace", "deep")
LOOK_S = 0.002
BINS_S = (0.003, 0.01, 0.03, 0.1, 0.3)


class Watch:
    """Looks at the main thread until it is stopped; `holds_s` are the times in which gpulab was on its stack."""

    def __init__(self) -> None:
        self.holds_s: list[float] = []
        self._ended = threading.Event()
        self._main = threading.main_thread().ident
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; a hold that goes on now belongs to the end of the cell and does not count."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        began_s: float | None = None
        while not self._ended.wait(LOOK_S):
            now_s, is_held = time.perf_counter(), _is_ours(current_frame(self._main))
            if is_held and began_s is None:
                began_s = now_s
            elif not is_held and began_s is not None:
                self.holds_s.append(now_s - began_s)
                began_s = None


def _is_ours(frame: FrameType | None) -> bool:
    """Whether gpulab is at work above the frame of the recorded cell; its hooks are if they call nothing else."""
    innermost = frame
    while frame is not None and frame.f_code.co_filename != __file__:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE) and (frame is innermost or not name.startswith(HOOKS)):
            return True
        frame = frame.f_back
    return False


def record(name: str, level: str) -> dict[str, Any]:
    """Record one loop in this process; return its holds in seconds, and how many steps and events it had."""
    import gpulab
    from benchmarks.wild.loop import prepared_cell
    from benchmarks.wild.registry import load_loop

    watch = Watch()
    with prepared_cell(load_loop(name)) as (code, namespace), gpulab.profile(name, level=level):
        watch.start()
        began_s = time.perf_counter()
        exec(code, namespace)
        loop_s = time.perf_counter() - began_s
        watch.stop()
    run = gpulab.runs[name]
    pauses_s = [(end_ns - start_ns) / 1e9 for start_ns, end_ns in run.recording.pauses_ns]
    return {"holds_s": watch.holds_s, "pauses_s": pauses_s, "loop_s": loop_s, "events": len(run.event_rows)}


def row_of(name: str, level: str, result: dict[str, Any]) -> str:
    """Return a row of the table."""
    holds_s = result["holds_s"]
    counts = [0] * (len(BINS_S) + 1)
    for hold_s in holds_s:
        counts[sum(hold_s >= limit_s for limit_s in BINS_S)] += 1
    told_s = max(result["pauses_s"], default=0.0)
    return (
        f"| {name} | {level} | {result['loop_s']:.1f} | {result['events']:,} | {max(holds_s, default=0.0):.3f} | "
        f"{told_s:.3f} | {' | '.join(map(str, counts[1:]))} |"
    )


def main() -> None:
    """Print a histogram of holds for each loop and level."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loops", nargs="*", metavar="LOOP", help="of the wild corpus; ten are the default")
    parser.add_argument("--one", nargs=2, metavar=("LOOP", "LEVEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        sys.path.insert(0, str(ROOT))
        print(json.dumps(record(*options.one)))
        return
    limits = " | ".join(f">= {1e3 * limit_s:g} ms" for limit_s in BINS_S)
    print(f"| loop | level | seconds | events | longest hold, s | longest recorded pause, s | {limits} |")
    print("|---|---|---:|---:|---:|---:" + "|---:" * len(BINS_S) + "|")
    for name in options.loops or LOOPS:
        for level in LEVELS:
            command = [sys.executable, __file__, "--one", name, level]
            done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
            print(row_of(name, level, json.loads(done.stdout.strip().splitlines()[-1])), flush=True)


if __name__ == "__main__":
    main()
