"""The live panel of a virtual GPU: its shares are those of the recorded run, in virtual time."""

from __future__ import annotations

import time

import pytest

from gpulab.intervals import union
from gpulab.tables import MarkKind
from gpulab.views.live.panel_content import PanelContentBuilder
from gpulab.virtual.host.costs import HostCosts
from gpulab.virtual.session import VirtualGpu
from gpulab.wording import UNKNOWN

torch = pytest.importorskip("torch")


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        end_ns = time.perf_counter_ns() + 5_000_000
        while time.perf_counter_ns() < end_ns:
            pass
        return torch.zeros(64)


@pytest.fixture(scope="module")
def recorded():
    snapshots = []
    with VirtualGpu("h100", "live", host=HostCosts.reference(), add_to_runs=False, on_tick=snapshots.append) as gpu:
        model = torch.nn.Linear(64, 4096).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for batch in torch.utils.data.DataLoader(Slow(), batch_size=2):
            model(batch.cuda()).sum().backward()
            optimizer.step()
    return gpu.run, snapshots[-1]


def test_waiting_and_busy_shares_are_those_of_the_run(recorded):
    run, last = recorded
    marks, events = run.mark_rows, run.event_rows
    first_ns = int(marks["start_ns"].min())
    loop_ns = run.span_ns - first_ns
    fetches = marks["kind"] == MarkKind.NEXT
    waited_ns = int((marks["end_ns"] - marks["start_ns"])[fetches].sum())
    device = events["device"] >= 0
    after = device & (events["start_ns"] >= first_ns)
    busy_ns = union(events["start_ns"][after], (events["start_ns"] + events["dur_ns"])[after]).total_ns
    assert last.waiting_frac == pytest.approx(waited_ns / loop_ns, abs=0.01)
    assert last.gpu_busy_frac == pytest.approx(busy_ns / loop_ns, abs=0.01)
    assert last.loop_s == pytest.approx(loop_ns / 1e9, rel=0.01)


def test_steps_per_second_count_virtual_seconds(recorded):
    last = recorded[1]
    assert last.steps_per_s == pytest.approx(last.steps / last.loop_s)


def test_the_panel_has_tiles_for_the_gpu_and_the_loader_and_none_without_a_value(recorded):
    tiles = {tile.label: tile for tile in PanelContentBuilder("live").build(recorded[1]).tiles}
    assert {"GPU busy", "GPU memory", "waiting for data"} <= tiles.keys()
    assert [tile.label for tile in tiles.values() if tile.value == UNKNOWN] == []
    assert tiles["waiting for data"].frac == recorded[1].waiting_frac
