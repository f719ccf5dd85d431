"""An interrupt at any line of entering and leaving a virtual GPU leaves PyTorch, signals and threads as they were."""

import gc
import multiprocessing.pool
import os
import random
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpulab.capture import active_session
from gpulab.deferred_signals import DeferredSignals
from gpulab.virtual.device import fake_device
from gpulab.virtual.device.counting_device import CountingDevice
from gpulab.virtual.device.torch_api import patches
from gpulab.virtual.host.costs import HostCosts
from gpulab.virtual.session import VirtualGpu

torch = pytest.importorskip("torch")

PACKAGE = str(Path(patches.__file__).parents[3])


def virtual_gpu():
    return VirtualGpu("h100", "interrupted", host=HostCosts.reference())


class Lines:
    """Traces gpulab's lines and those of contextlib, and interrupts the program at one of them."""

    def __init__(self, stop_at=None):
        self.count, self.stop_at = 0, stop_at
        self.patched = {}

    def __enter__(self):
        self.previous = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self.previous)

    def trace(self, frame, event, _):
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) and not name.endswith("contextlib.py"):
            return None
        if event == "call" and frame.f_code is patches.patch_attributes.__code__:
            owner = frame.f_locals["owner"]
            self.patched |= {(id(owner), key): owner for key in frame.f_locals["values"]}
        if event == "line" and not self._is_entry(frame):
            self.count += 1
            if self.count == self.stop_at:
                signal.raise_signal(signal.SIGINT)
        return self.trace

    @staticmethod
    def _is_entry(frame):
        return frame.f_code is VirtualGpu.__exit__.__code__ and frame.f_lineno <= _first_line(frame.f_code)


def _first_line(code):
    return min(line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno)


def enter_and_leave():
    with virtual_gpu():
        pass


@pytest.fixture(scope="module")
def lines():
    """Lines from entering to leaving, and the attributes that are patched."""
    enter_and_leave()  # imports and caches
    with Lines() as lines:
        enter_and_leave()
    return lines


def state(patched):
    from torch.nn.modules import module
    from torch.optim import optimizer

    hooks = (
        module._global_forward_pre_hooks,
        module._global_forward_hooks,
        optimizer._global_optimizer_pre_hooks,
        optimizer._global_optimizer_post_hooks,
    )
    return {
        "attributes": {key: vars(owner).get(key[1], "absent") for key, owner in patched.items()},
        "iterators": torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
        "hooks": [len(each) for each in hooks],
        "modes": mode_counts(),
        "gc": (gc.isenabled(), gc.get_threshold(), bool(gc.get_freeze_count())),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "threads": threading.active_count(),
        "files": len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0,
        "active": (active_session._active, list(fake_device._ACTIVE)),
    }


def mode_counts():
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return torch._C._len_torch_function_stack(), len(_get_current_dispatch_mode_stack())


def check_interrupt(lines, position):
    before = state(lines.patched)
    with pytest.raises(KeyboardInterrupt), Lines(position):
        enter_and_leave()
    after = state(lines.patched)
    assert {key: value for key, value in after.items() if value != before[key]} == {}, position


@pytest.mark.night
def test_an_interrupt_at_some_lines_leaves_nothing_patched(lines):
    assert len(lines.patched) > 100
    for position in random.Random(1).sample(range(1, lines.count), 12):
        check_interrupt(lines, position)
    assert float(torch.ones(3).sum()) == 3
    assert not torch.cuda.is_available()


@pytest.mark.night
def test_an_interrupt_at_any_line_leaves_nothing_patched(lines):
    every = int(os.environ.get("GPULAB_INTERRUPT_EVERY", "97"))
    for position in range(1, lines.count, every):
        check_interrupt(lines, position)


def test_the_whole_block_leaves_everything_as_it_was(lines):
    before = state(lines.patched)
    enter_and_leave()
    assert state(lines.patched) == before


@pytest.mark.parametrize("operation", ["disable", "enable"])
@pytest.mark.parametrize("enabled", [True, False])
def test_the_programs_own_setting_of_the_garbage_collector_stays(operation, enabled):
    before, threshold = gc.isenabled(), gc.get_threshold()
    try:
        (gc.enable if enabled else gc.disable)()
        with virtual_gpu():
            assert gc.isenabled() == enabled
            getattr(gc, operation)()
        assert gc.isenabled() == (operation == "enable")
        assert gc.get_threshold() == threshold
        with virtual_gpu():
            gc.set_threshold(5000, 7, 8)
        assert gc.get_threshold()[:2] == (5000, 7)
    finally:
        gc.set_threshold(*threshold)
        (gc.enable if before else gc.disable)()


def on_gpu():
    tensor = torch.ones(2, 3, device="cuda") @ torch.ones(3, 4, device="cuda")
    return tensor.device.type, tuple(tensor.shape), mode_counts()


def test_threads_of_a_pool_created_inside_leave_the_modes_with_each_task():
    with virtual_gpu():
        executor, pool = ThreadPoolExecutor(1), multiprocessing.pool.ThreadPool(1)
        for result in (executor.submit(on_gpu).result(), pool.apply(on_gpu), *pool.map(lambda _: on_gpu(), range(2))):
            assert result[:2] == ("cuda", (2, 4))
            assert min(result[2]) > 0
    with executor, pool:
        assert executor.submit(mode_counts).result() == (0, 0)
        assert pool.apply(mode_counts) == (0, 0)
        assert pool.map(lambda _: float(torch.ones(3).sum()), range(2)) == [3.0, 3.0]


def test_threads_of_a_pool_created_before_use_the_virtual_gpu_while_it_exists():
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(mode_counts).result() == (0, 0)
        with virtual_gpu():
            assert executor.submit(on_gpu).result()[:2] == ("cuda", (2, 4))
        assert executor.submit(mode_counts).result() == (0, 0)


def test_errors_of_tasks_reach_the_program():
    with virtual_gpu(), ThreadPoolExecutor(1) as executor, multiprocessing.pool.ThreadPool(1) as pool:
        with pytest.raises(ZeroDivisionError):
            executor.submit(lambda: 1 / 0).result()
        with pytest.raises(ZeroDivisionError):
            pool.apply(lambda: 1 / 0)


@pytest.mark.parametrize("counting", [False, True])
def test_a_thread_that_outlives_the_virtual_gpu_computes_as_without_it(counting, monkeypatch):
    if counting:
        monkeypatch.setattr("gpulab.virtual.session.FakeDevice", CountingDevice)
    ended, results = threading.Event(), []

    def work():
        results.append(torch.ones(3, device="cuda").device.type)
        ended.wait(30)
        results.append(float(torch.ones(3).sum()))
        try:
            torch.ones(3, device="cuda")
        except Exception as error:
            results.append(type(error))

    with virtual_gpu():
        thread = threading.Thread(target=work)
        thread.start()
        while not results:
            pass
    ended.set()
    thread.join()
    assert results[:2] == ["cuda", 3.0]
    assert results[2] in (AssertionError, RuntimeError, NotImplementedError)


def raise_two_signals(calls):
    with DeferredSignals():
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGINT)
        assert calls == []
        calls.append("end")


def test_signals_are_handled_at_the_end_of_the_block_in_order():
    calls = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
    try:
        with pytest.raises(KeyboardInterrupt):
            raise_two_signals(calls)
        assert calls == ["end", signal.SIGUSR1]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_set_inside_the_block_stays():
    def other(number, frame):
        pass

    before = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        with DeferredSignals():
            signal.signal(signal.SIGUSR1, other)
        assert signal.getsignal(signal.SIGUSR1) is other
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_other_threads_change_no_handlers():
    handlers = []

    def work():
        with DeferredSignals():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
