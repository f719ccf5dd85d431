"""A recorded loop whose tracing has ended; it prints how many additions were traced, and waits to be killed."""

import json
import sys
import time

import torch
from torch.utils.data import DataLoader

from gpulab.capture.plan import ProfilerPhase
from gpulab.capture.session import Session

session = Session("traced", level="trace")
session.start()
tensor, counts = torch.ones(4), []
for _ in DataLoader(torch.arange(1000), batch_size=1):
    tensor.add_(1)
    time.sleep(0.05)
    if session._tracing.plan.phase is ProfilerPhase.DONE:
        break
windows = session._tracing.windows
while (
    windows.is_latest_in_memory
    or (state := session._spool._last_state) is None
    or state.windows_ns != tuple(windows.spans_ns)
):
    time.sleep(0.1)
for window in windows.windows:
    events = json.loads(window._path.read_text(encoding="utf-8"))["traceEvents"]
    counts.append(sum(event["name"] == "aten::add_" for event in events))
sys.stdout.write(f"{sum(counts)}\n")
sys.stdout.flush()
time.sleep(600)
