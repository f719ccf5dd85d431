"""Out-of-memory errors: parsing the error, the finding and its report, and the unchanged behaviour of the cell."""

import functools
import gc
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gpulab  # noqa: E402  (after the skip)
from gpulab import store  # noqa: E402
from gpulab.capture.memory.memory_watch import MemoryWatch  # noqa: E402
from gpulab.capture.memory.out_of_memory import parse_failure  # noqa: E402
from gpulab.rules import diagnose  # noqa: E402
from gpulab.views.report.report import report  # noqa: E402
from gpulab.workloads.memory import leaks_and_oom, simulated_card  # noqa: E402
from tests.support.front_end.kernel import Kernel, Reply  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
KIB, MIB, GIB = 2**10, 2**20, 2**30

# PyTorch's messages: with other processes; in a container, without its own process number; with a limit and CUDA
# graphs; of other vendors.
MESSAGES = [
    (
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is "
        "free. Process 4711 has 30.00 GiB memory in use. Process 4712 has 2.00 GiB memory in use. Including "
        "non-PyTorch memory, this process has 47.00 GiB memory in use. Of the allocated memory 44.00 GiB is allocated "
        "by PyTorch, and 2.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
        "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        {"needed": 20, "capacity": 80, "free": 1, "allocated": 44, "reserved": 46, "others": 32},
    ),
    (
        "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 2 has a total capacity of 48.00 GiB of which 0 bytes is "
        "free. Process 3652628 has 47.50 GiB memory in use. Of the allocated memory 47.00 GiB is allocated by PyTorch, "
        "and 0 bytes is reserved by PyTorch but unallocated.",
        {"device": 2, "needed": 0.25, "capacity": 48, "free": 0, "allocated": 47, "reserved": 47, "others": 0},
    ),
    (
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 40.00 GiB is "
        "free. Including non-PyTorch memory, this process has 40.00 GiB memory in use. 39.00 GiB allowed; Of the "
        "allocated memory 38.00 GiB is allocated by PyTorch, with 2.00 GiB allocated in private pools (e.g., CUDA "
        "Graphs), and 512.00 MiB is reserved by PyTorch but unallocated.",
        {"needed": 1, "capacity": 39, "free": 0.5, "allocated": 38, "reserved": 38.5, "others": 0},
    ),
    (
        "XPU out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 15.00 GiB of which 14.00 GiB is "
        "free. Of the allocated memory 512.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
        "unallocated. Please use `empty_cache` to release all unoccupied cached memory.",
        {"needed": 16, "capacity": 15, "free": 14, "allocated": 0.5, "reserved": 0.5},
    ),
    (
        "HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 64.00 GiB of which 1.00 GiB is "
        "free. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but "
        "unallocated.",
        {"device": 3, "needed": 2, "capacity": 64, "free": 1, "allocated": 60, "reserved": 61},
    ),
]


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(("message", "expected"), MESSAGES, ids=range(len(MESSAGES)))
def test_the_sizes_are_parsed_from_every_form_of_the_message(message, expected):
    failure = parse_failure(raised(torch.OutOfMemoryError(message)))
    assert failure.device == expected.pop("device", 0)
    names = ("needed", "free", "capacity", "allocated", "reserved", "others")
    sizes = {name: getattr(failure, f"{name}_bytes") for name in names}
    assert {name: size / GIB for name, size in sizes.items() if size is not None} == pytest.approx(expected)


@pytest.mark.parametrize(
    "message", ["CUDA out of memory.", "", "Tried to allocate many GiB", "of which -3 GiB is free"]
)
def test_sizes_missing_from_the_message_are_none(message):
    failure = parse_failure(raised(torch.OutOfMemoryError(message)))
    assert failure.needed_bytes is None
    assert failure.capacity_bytes is None
    assert failure.others_bytes is None


def test_host_out_of_memory_errors_of_torch_and_numpy_are_parsed():
    import numpy as np

    requested_bytes = 8 * 10**15
    for allocate in (
        lambda: torch.empty(requested_bytes, dtype=torch.uint8),
        lambda: np.empty(requested_bytes, np.uint8),
    ):
        try:
            allocate()
        except (RuntimeError, MemoryError) as error:
            failure = parse_failure(error)
        assert failure.needed_bytes == requested_bytes
        assert failure.device is None
        assert not failure.simulated
    assert parse_failure(MemoryError()).needed_bytes is None


@pytest.mark.parametrize(
    "error", [ValueError("Tried to allocate 2 GiB"), KeyboardInterrupt(), RuntimeError("shape"), None]
)
def test_other_errors_are_no_out_of_memory_failure(error):
    assert parse_failure(error) is None


def test_the_cause_of_a_chained_error_is_found():
    def train():
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        except torch.OutOfMemoryError as error:
            raise RuntimeError("training failed") from error

    try:
        train()
    except RuntimeError as error:
        failure = parse_failure(error)
    assert failure.needed_bytes == 2 * GIB
    assert failure.where.startswith("train (test_out_of_memory.py:")


def phase_of(train):
    """The phase in which memory runs out on a card so small that `train` fails."""
    try:
        train()
    except torch.OutOfMemoryError as error:
        return parse_failure(error)
    raise AssertionError("it was to fail")


def test_the_phase_follows_from_the_frames_of_the_traceback():
    model, batch = torch.nn.Linear(512, 512), torch.ones(8, 512)

    def forward():
        with simulated_card.limited_memory(KIB):
            model(batch)

    def evaluation():
        model.eval()
        forward()

    @torch.no_grad()
    def validate():
        with simulated_card.limited_memory(KIB):
            return batch * 2

    def backward():
        loss = model(batch).sum()
        with simulated_card.limited_memory(KIB):
            loss.backward()

    def optimizer():
        model(batch).sum().backward()
        adam = torch.optim.Adam(model.parameters())
        with simulated_card.limited_memory(KIB):
            adam.step()

    def alone():
        with simulated_card.limited_memory(KIB):
            return torch.ones(MIB)

    phases = {train.__name__: phase_of(train).phase for train in (forward, backward, optimizer, alone, evaluation)}
    assert phases == {**{name: name for name in phases}, "alone": None}
    assert phase_of(validate).phase == "evaluation"


def test_the_location_is_the_failing_line_inside_a_with_block():
    def train():
        with simulated_card.limited_memory(KIB):
            small = torch.ones(4)
            return torch.ones(MIB) + small[0]

    failure = phase_of(train)
    first = train.__code__.co_firstlineno
    assert failure.where == f"train (test_out_of_memory.py:{first + 3})"


RAN_OUT = """
import sys
import gpulab
from gpulab.workloads.memory import leaks_and_oom
try:
    with gpulab.profile("ran_out"):
        leaks_and_oom.train_with_limited_memory()
except Exception as error:
    assert type(error).__name__ == "OutOfMemoryError", error
gpulab.save(gpulab.runs["ran_out"], sys.argv[1])
"""


@functools.lru_cache(maxsize=1)
def ran_out():
    """A loop that ran out, in a process of its own: on a simulated card all tensors in host memory count."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ran_out.gpulab"
        subprocess.run([sys.executable, "-c", RAN_OUT, str(file)], check=True, cwd=ROOT, timeout=240)
        return store.open(file)


@pytest.mark.full
def test_the_owners_of_memory_add_up_to_the_allocated_bytes():
    run = ran_out()
    assert run.outcome == "OutOfMemoryError"
    assert run.failure.simulated
    assert run.failure.phase in ("forward", "backward")
    assert sum(run.holder_rows["bytes"]) == pytest.approx(run.failure.allocated_bytes, rel=0.001)
    bytes_by_kind = dict(zip(run.holders["kind"], run.holders["bytes"], strict=True))
    assert bytes_by_kind["parameter"] == 6 * (512 * 512 + 512) * 4
    assert bytes_by_kind["optimizer"] == pytest.approx(2 * bytes_by_kind["parameter"], rel=0.001)


@pytest.mark.full
def test_out_of_memory_is_always_the_verdict(tmp_path):
    run = ran_out()
    for each in (run, store.open(gpulab.save(run, tmp_path / "run.gpulab"))):
        diagnosis = diagnose(each)
        assert diagnosis.first.rule == "out_of_memory"
        assert diagnosis.verdict.startswith("Out of simulated GPU memory: ")
        assert diagnosis.first.fix


def test_out_of_memory_is_judged_with_level_sensors():
    with pytest.raises(torch.OutOfMemoryError), gpulab.profile("sensed", level="sensors"):
        leaks_and_oom.train_with_limited_memory()
    assert diagnose(gpulab.runs["sensed"]).first.rule == "out_of_memory"


@pytest.mark.full
def test_the_report_lists_the_owners_of_memory_in_text_and_html():
    view = report(ran_out())
    for form in (repr(view), view.html_page()):
        assert "What holds the memory" in form
        assert "saved for backward()" in form
        assert "optimizer state" in form
        assert "accounts" not in form


@pytest.mark.full
def test_a_successful_run_has_no_table_of_owners():
    run = replace(ran_out(), failure=None, outcome="ok")
    assert "What holds the memory" not in repr(report(run))


def test_micro_batches_of_the_fix_give_the_same_gradients():
    """The fix that is printed, on the batch that did not fit."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    inputs, targets = torch.randn(96, 64), torch.randint(10, (96,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    gradients = [each.grad.clone() for each in model.parameters()]
    fix = diagnose(ran_out()).first.fix
    loop = fix[fix.index("parts = ") :]
    exec(loop, {"torch": torch, "model": model, "optimizer": optimizer, "loader": [(inputs, targets)]})
    for grad, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_an_error_of_the_memory_watch_does_not_reach_the_user(monkeypatch):
    watch = MemoryWatch()
    monkeypatch.setattr("gpulab.capture.memory.memory_watch.find_holders", lambda *_: 1 / 0)
    monkeypatch.setattr(watch._growing, "inspect", lambda *_: 1 / 0)
    watch.boundary(9, None)
    failure, rows = watch.finish(raised(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")))
    assert failure.needed_bytes == 2 * GIB
    assert len(rows) == 0
    assert [gap.what for gap in watch.gaps] == ["memory at the start of each step", "memory holders"]


def test_the_allocator_is_read_periodically_and_only_after_cuda_is_initialised(monkeypatch):
    def memory_stats(device):
        one = {"all": {"current": 1000 + device, "peak": 2000 if device != 1 else 0}}
        both = {"allocated_bytes": one, "reserved_bytes": one}
        return {**both, "num_alloc_retries": 3, "num_ooms": 1, "num_device_alloc": 7}

    from gpulab.capture.memory.allocator import ALLOCATOR_INTERVAL_NS, AllocatorReadings

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", memory_stats)
    readings = AllocatorReadings()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    readings.read(0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for at_ns in (10, 20, 10 + ALLOCATOR_INTERVAL_NS):
        readings.read(at_ns)
    rows = readings.rows(10)
    assert rows["device"].tolist() == [0, 2, 0, 2]  # the one that PyTorch never used is left out
    assert rows["at_ns"].tolist() == [0, 0, ALLOCATOR_INTERVAL_NS, ALLOCATOR_INTERVAL_NS]
    assert rows["allocated_bytes"].tolist() == [1000, 1002] * 2
    assert rows["retries"].tolist() == [3] * 4
    assert rows["inactive_split_bytes"].tolist() == [-1] * 4  # not told, and not zero


# In a notebook.


@pytest.fixture(scope="module")
def live(shared_kernel: Callable[..., Kernel]) -> Kernel:
    setup = (
        "import gc, sys, weakref, torch, gpulab\n"
        "from gpulab.workloads.memory.simulated_card import limited_memory\n"
        "torch.set_num_threads(1)\n"
        "card = limited_memory(32 * 2**20)\n"
        "def work():\n"
        "    global gone\n"
        "    mine = torch.ones(4 * 2**20)\n"  # 16 MiB
        "    gone = weakref.ref(mine)\n"
        "    with card:\n"
        "        return torch.ones(2**24)\n"
    )
    return shared_kernel(setup, "%load_ext gpulab")


def displayed_text(reply: Reply) -> str:
    return "\n".join(text for kind, text in reply.outputs if kind == "display_data")


def test_a_cell_that_runs_out_of_memory_fails_unchanged_with_a_report(live):
    unprofiled = live.run("work()")
    profiled = live.run("%%gpuprofile out\nwork()")
    assert profiled.status == unprofiled.status == "error"
    assert profiled.content["ename"] == unprofiled.content["ename"] == "OutOfMemoryError"
    assert profiled.content["evalue"] == unprofiled.content["evalue"]
    assert len(profiled.content["traceback"]) == len(unprofiled.content["traceback"])
    assert all(text in displayed_text(profiled) for text in ("Out of simulated GPU memory", "64 MiB", "32 MiB"))


def test_the_traceback_of_an_earlier_cell_is_listed_as_owner(live):
    live.run("work()")
    live.run("%%gpuprofile again\ntorch.ones(3)\nwork()")
    holders = live.run("dict(zip(gpulab.runs['again'].holders.who, gpulab.runs['again'].holders.bytes))").value
    assert f"'sys.last_traceback': {16 * MIB}" in holders
    assert f"'mine in work()': {16 * MIB}" in holders


@pytest.mark.full
def test_the_printed_code_releases_errors_and_outputs(live):
    live.run("%%gpuprofile forget\nwork()")
    assert live.run("gone() is None").value == "False"
    assert live.run("from gpulab.rules.memory import oom_fixes\nexec(oom_fixes._FORGET_ERROR)").status == "ok"
    assert live.run("gone() is None").value == "True"
    live.run("torch.ones(2**20)")
    live.run("kept = weakref.ref(_);")
    live.run("torch.ones(3)")
    assert live.run("exec(oom_fixes._FORGET_VALUES); print(kept() is None)").stdout.endswith("True\n")


def test_the_recording_keeps_no_object_of_the_cell_alive(live):
    live.run("%%gpuprofile kept\nwork()")
    live.run("from gpulab.rules.memory import oom_fixes\nexec(oom_fixes._FORGET_ERROR)")
    live.run("7 * 6")
    assert live.run("(gone() is None, _)").value == "(True, 42)"


def test_a_recording_in_a_script_keeps_no_object_alive():
    references = []

    def train():
        batch = torch.ones(64)
        references.append(weakref.ref(batch))
        with simulated_card.limited_memory(KIB):
            return torch.ones(MIB) + batch[0]

    with pytest.raises(torch.OutOfMemoryError) as caught, gpulab.profile("script"):
        train()
    del caught
    gc.collect()
    assert references[0]() is None
