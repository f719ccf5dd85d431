"""Shared by several tests: from test_live."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.run import Gpu
from gpulab.sensors import GpuReading
from tests.support.front_end.kernel import Kernel


def live_state(**changed: Any) -> LiveSnapshot:
    """A session that has run for a while on a machine without a GPU."""
    fields: dict[str, Any] = {
        "phase": "recording",
        "elapsed_s": 75.0,
        "steps": 1234,
        "steps_per_s": 7.91,
        "waiting_frac": 0.41,
        "gpus": (),
        "core_fracs": (0.5, 1.0),
        "rss_bytes": 3.0 * 2**30,
        "workers": 2,
        "frame": "train (cell line 7)",
    }
    return LiveSnapshot(**{**fields, **changed})


def gpu(**changed: Any) -> GpuReading:
    readings = {"util_frac": 0.34, "memory_used_bytes": 2.0**34, "memory_bytes": 2**36, "power_w": 312.0, **changed}
    card = Gpu(index=0, name=readings.pop("name", "A GPU"), memory_bytes=readings.pop("memory_bytes"))
    return GpuReading(gpu=card, values={name: math.nan if value is None else value for name, value in readings.items()})


@pytest.fixture(scope="module")
def live(shared_kernel: Callable[..., Kernel]) -> Kernel:
    return shared_kernel("import torch, gpulab, sys, os; torch.set_num_threads(1)", "%load_ext gpulab")


class Front:
    """A front end that speaks to the kernel while a cell runs, around it where there is a subshell."""

    def __init__(self, live: Kernel, *, subshell: bool = True) -> None:
        self.live, self.subshell = live, None
        if subshell:
            self.subshell = self._control("create_subshell_request", {})["subshell_id"]

    def close(self) -> None:
        if self.subshell:
            self._control("delete_subshell_request", {"subshell_id": self.subshell})

    def say(self, comm: str, kind: str) -> None:
        content = {"comm_id": comm, "data": {"method": "custom", "content": {"kind": kind}}}
        message = self.live.client.session.msg("comm_msg", content)
        if self.subshell:
            message["header"]["subshell_id"] = self.subshell
        self.live.client.shell_channel.send(message)

    def _control(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        message = self.live.client.session.msg(kind, content)
        self.live.client.control_channel.send(message)
        while True:
            reply = self.live.client.get_control_msg(timeout=60)
            if reply["parent_header"]["msg_id"] == message["header"]["msg_id"]:
                return reply["content"]


@pytest.fixture
def front(live: Kernel) -> Iterator[Front]:
    if int(live.value("__import__('ipykernel').__version__.split('.')[0]")) < 7:
        pytest.skip("this ipykernel has no subshells; its panel names the interrupt button instead")
    front_ = Front(live)
    yield front_
    front_.close()
