"""A virtual GPU around ordinary CUDA code: a run like any other, and torch as it was."""

import gc

import numpy as np
import pytest

import gpulab
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.errors import CaptureError, RunError
from gpulab.questions import prepare_scene
from gpulab.tables import EventKind
from gpulab.views.compare.comparison import comparison_view as compared
from gpulab.virtual.host.costs import HostCosts
from gpulab.virtual.op_log.ops import STEP_HIGH_FACT, STEP_LOW_FACT
from gpulab.virtual.session import VirtualGpu

torch = pytest.importorskip("torch")
nn = torch.nn


def playing(gpu="h100", name="played"):
    """A virtual GPU with the usual host: nothing is measured, so every run is alike."""
    return VirtualGpu(gpu, name, host=HostCosts.reference())


def train(count=12, batch=64, width=1024, loader=None, device="cuda"):
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = loader if loader is not None else (torch.randn(batch, width) for _ in range(count))
    for loaded in batches:
        inputs = (loaded[0] if isinstance(loaded, list) else loaded).to(device)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()


def data(count=10, batch=64, width=1024, **options):
    samples = torch.utils.data.TensorDataset(torch.randn(count * batch, width))
    return torch.utils.data.DataLoader(samples, batch_size=batch, **options)


def raise_after(steps, error):
    train(steps)
    raise error


@pytest.fixture(scope="module")
def run():
    with playing() as gpu:
        train()
    return gpu.run


def test_a_virtual_run_is_a_normal_run_marked_as_estimated(run):
    assert str(run.source) == "virtual H100 SXM, estimated"
    assert run.machine.gpus[0].name == "NVIDIA H100 80GB HBM3"
    assert gpulab.runs["played"] is run
    step_table = find_steps(run)
    assert step_table.detected_by == "optimizer"
    account = build_ledger(run, step_table)
    assert account.device == "gpu"
    assert account.step_ns.sum() == (step_table.end_ns - step_table.start_ns)[step_table.interior].sum()
    assert step_table.step_ns == step_table.traced_ns == step_table.unprofiled_ns


def test_models_and_optimizers_are_recorded(run):
    assert [each.kind for each in run.optimizers] == ["AdamW"]
    assert run.optimizers[0].device == "cuda"
    assert run.models[0].bytes == 2 * (1024 * 1024 + 1024) * 4


def test_analyses_of_real_runs_work_on_a_virtual_run(run):
    assert "Virtual H100 SXM, estimated." in repr(gpulab.report(run))
    assert "virtual H100 SXM, estimated" in repr(gpulab.whatif(run, "instant_host"))
    assert "virtual H100 SXM, estimated" in repr(compared(gpulab.compare(run, run)))


def test_rules_that_need_a_real_machine_are_skipped_with_a_reason(run):
    unjudged = {each.rule: each.reason for each in gpulab.diagnose(run).unjudged}
    for rule in (
        "clock_throttling",
        "slow_pcie_link",
        "cpu_oversubscription",
        "garbage_collection",
        "slow_first_step",
        "periodic_stalls",
    ):
        assert "a simulation has no such measurements" in unjudged[rule]


def test_the_replay_of_a_virtual_run_is_exact(run):
    quality = prepare_scene(run).quality
    assert abs(quality.replay_error) < 0.005


def test_a_virtual_run_survives_saving_and_loading(run, tmp_path):
    gpulab.save(run, tmp_path / "played.gpulab")
    again = gpulab.load(tmp_path / "played.gpulab")
    assert again.source == run.source
    assert again.facts == run.facts
    for column, values in run.event_rows.columns.items():
        if column != "name":
            assert np.array_equal(values, again.event_rows.columns[column])


def test_memory_is_recorded_over_time_and_at_each_step(run):
    rows = run.memory_rows
    assert rows["allocated_bytes"].max() > 4 * 2 * 1024 * 1024 * 4  # parameters, gradients, two moments
    assert (rows["reserved_bytes"] >= rows["allocated_bytes"]).all()
    host = find_steps(run).host_steps  # the GPU may finish fewer steps in the window than the host begins
    assert len(run.allocator_rows) == len(host) + 2  # at the beginning, and where steps begin


def test_the_same_code_takes_longer_on_a_smaller_gpu():
    step_times = {}
    for name in ("t4", "a100", "h100"):
        with playing(name, name) as gpu:
            samples = [torch.randn(8192, 1024, device="cuda")] * 6
            train(loader=samples)
        step_times[name] = gpu.step_ns
        low, high = gpu.step_range_ns
        assert low < gpu.step_ns < high
    assert step_times["t4"] > 2 * step_times["a100"] > 4 * step_times["h100"]


def test_an_exception_propagates_and_the_run_is_stored():
    gpu = playing(name="failing")
    with pytest.raises(ZeroDivisionError), gpu:
        raise_after(4, ZeroDivisionError)
    assert gpu.run.outcome == "ZeroDivisionError"
    assert gpulab.runs["failing"] is gpu.run
    assert not torch.cuda.is_available()


def test_torch_is_restored_after_an_interrupt():
    before = torch.cuda.is_available, torch.Tensor.cuda, torch.utils.data.DataLoader.__iter__, gc.isenabled()
    with pytest.raises(KeyboardInterrupt), playing(name="stopped"):
        raise_after(2, KeyboardInterrupt)
    assert (torch.cuda.is_available, torch.Tensor.cuda, torch.utils.data.DataLoader.__iter__, gc.isenabled()) == before
    torch.ones(3).sum().item()


@pytest.mark.full
def test_only_one_recording_is_active_at_a_time():
    with playing(name="outer"):
        with pytest.raises(CaptureError, match=r"'inner'.*'outer'"), gpulab.profile("inner"):
            pass
        with pytest.raises(CaptureError, match=r"'inner'.*'outer'"), playing(name="inner"):
            pass
    with gpulab.profile("outer", level="sensors"), pytest.raises(CaptureError), playing(name="inner"):
        pass
    with playing(name="afterwards"):
        assert torch.cuda.is_available()


def test_an_unknown_gpu_raises_run_error_with_the_list():
    with pytest.raises(RunError, match="h1000"):
        gpulab.virtual_gpu("h1000")


def test_batches_come_from_the_real_loader_with_their_measured_time():
    with playing(name="fed") as gpu:
        train(loader=data())
    run = gpu.run
    assert find_steps(run).detected_by == "DataLoader"
    assert run.loaders[0].batch_size == 64
    loaded = run.event_rows.of_kind(EventKind.LOADER)
    assert len(loaded) == 11  # and the one that ends the pass
    assert loaded["dur_ns"].min() > 10_000
    assert build_ledger(run, find_steps(run)).typical_frac("loader") > 0


def test_workers_build_batches_in_parallel_with_the_gpu():
    with playing(name="workers") as gpu:
        train(loader=data(12, num_workers=2, pin_memory=True))
    run = gpu.run
    assert run.loaders[0].workers == 2
    assert run.loaders[0].pin_memory
    copies = run.event_rows.of_kind(EventKind.MEMCPY)
    assert any("Pinned" in name for name in copies.text("name").to_list())


def test_gpulab_step_ends_a_step():
    with playing(name="said") as gpu:
        model = nn.Linear(64, 64).cuda()
        for _ in range(7):
            model(torch.ones(8, 64, device="cuda"))
            gpulab.step()
    assert find_steps(gpu.run).detected_by == "gpulab.step()"
    assert gpu.step_ns > 0


def test_mark_starts_the_timed_step():
    with playing(name="marked") as gpu:
        train(3)
        gpu.mark()
        train(1, batch=8192)
        large = gpu.step_ns
        gpu.mark()
        train(1, batch=64)
        assert gpu.step_ns < large


def test_a_run_without_a_step_has_no_step_time():
    with playing(name="nothing") as gpu:
        torch.ones(3, device="cuda")
    with pytest.raises(RunError, match=r"gpulab\.step\(\)"):
        gpu.step_ns  # noqa: B018
    assert gpulab.report(gpu.run)


def test_host_operators_have_their_measured_time():
    with playing(name="hosted") as gpu:
        for _ in range(7):
            noise = torch.randn(2**20)
            (noise.cuda() + 1).sum()
            gpulab.step()
    names = gpu.run.event_rows.text("name")
    filled = gpu.run.event_rows.select(
        np.flatnonzero(names.matching(word == "aten::normal_" for word in names.vocabulary))
    )
    assert len(filled) == 7
    assert filled["dur_ns"].min() > 100_000


def test_assumptions_are_stored_with_their_count():
    with playing(name="assumed") as gpu:
        for _ in range(4):
            loss = torch.ones(8, device="cuda").sum()
            loss.item()
            gpulab.step()
    assumptions = {name: value for name, value in gpu.run.facts.items() if name.startswith("assumed: ")}
    assert len(assumptions) == 1
    assert "4 times" in next(iter(assumptions.values()))
    assert "Assumptions" in repr(gpulab.report(gpu.run))


def test_the_step_range_contains_the_step_time(run):
    low, high = float(run.facts[STEP_LOW_FACT]), float(run.facts[STEP_HIGH_FACT])
    assert low < find_steps(run).step_ns < high


def test_cuda_sleep_takes_gpu_time_in_the_current_stream():
    with playing("t4") as gpu:
        cycles = gpu.spec.sm_clock_mhz * 1000 * 10  # ten milliseconds
        side = torch.cuda.Stream()
        start, done, side_done = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        with torch.cuda.stream(side):
            torch.cuda._sleep(2 * cycles)
            side_done.record()
        torch.cuda._sleep(cycles)
        done.record()
        assert not done.query()
        torch.cuda.synchronize()
        elapsed_ms = start.elapsed_time(done), start.elapsed_time(side_done)
        with pytest.raises(TypeError, match="expected 'int'"):
            torch.cuda._sleep(1.5)
    assert elapsed_ms == (pytest.approx(10, abs=0.1), pytest.approx(20, abs=0.1))
    names = gpu.run.event_rows.of_kind(EventKind.KERNEL).text("name")
    assert all("spin_kernel" in names[row] for row in range(2))


@pytest.mark.parametrize("step_count", [1, 3, 5])
def test_the_requested_number_of_steps_is_recorded(run, step_count):
    with VirtualGpu("h100", "some", steps=step_count, host=HostCosts.reference()) as gpu:
        train()
    recorded_steps, all_steps = find_steps(gpu.run).host_steps, find_steps(run).host_steps
    assert (recorded_steps.recorded.sum(), len(recorded_steps)) == (step_count, len(all_steps))
    assert recorded_steps.recorded.argmax() == all_steps.recorded.argmax(), "once the loop has settled"


def test_a_short_loop_records_its_last_steps_or_all_of_them():
    def recorded(step_count):
        with VirtualGpu("h100", "short", steps=step_count, host=HostCosts.reference()) as gpu:
            train(loader=data(count=5))
        return find_steps(gpu.run).host_steps.recorded.tolist()

    assert recorded(4) == [False, True, True, True, True]
    assert recorded(50) == [True] * 5


def test_no_steps_cannot_be_recorded():
    with pytest.raises(CaptureError, match="Cannot record 0 steps"):
        gpulab.virtual_gpu("h100", steps=0)
