"""What many tests need: where recorded traces lie, what a test must have to run, a check that nothing is left."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.support.frozen_garbage import nothing_is_frozen, old_is_frozen
from tests.support.oracle import SHARED, Oracle
from tests.support.retry import Retries
from tests.support.tiers import DEFAULT_EXAMPLES, is_night

__all__ = ["nothing_is_frozen", "old_is_frozen"]  # fixtures

ROOT = Path(__file__).resolve().parent.parent

# No test reads or writes the user's own history of predictions, progress in the course or copies of recordings, nor
# does a kernel that a test starts.
os.environ["GPULAB_HISTORY"] = "off"
os.environ["GPULAB_PROGRESS"] = "off"
os.environ["GPULAB_SPOOL"] = "off"

# A program that a shell starts in the background ignores Ctrl-C, and so do its children; the tests send it to both.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Examples of property tests: few and always the same ones in the first tier, many and new ones in the second. Neither
# has a deadline: how long an example takes depends on what else the machine does.
_PATIENT: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=25, derandomize=True, database=None, **_PATIENT)
settings.register_profile("full", max_examples=DEFAULT_EXAMPLES, **_PATIENT)
settings.load_profile("quick")

# Tests with these fixtures run in one worker of pytest-xdist, one after the other, and begin first: they are the
# longest queues. All other tests of a file form a group.
GROUPS = {"jupyterlab": "browser", "chromium": "browser", "shared_kernel": "kernel", "both": "oracle"}
GROUPS |= {"public_families": "public code", "public_features": "public code"}
FIRST = ("browser", "kernel", "oracle", "public code")


def pytest_configure(config: pytest.Config) -> None:
    """Repeat the tests that time this machine; let pytest-xdist begin with the longest queues."""
    config.pluginmanager.register(Retries())
    config.pluginmanager.register(XdistGroups())
    config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group and sort the tests; leave those of the night to it; skip, with the reason, what this machine cannot run."""
    if not is_night():
        left = [item for item in items if item.get_closest_marker("night")]
        items[:] = [item for item in items if not item.get_closest_marker("night")]
        config.hook.pytest_deselected(items=left)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        alone = item.get_closest_marker("alone")
        if alone is not None and not alone.args:
            raise pytest.UsageError(f"{item.nodeid}: alone(...) says what of this machine the test measures")
    items.sort(key=lambda item: FIRST.index(_group(item)) if _group(item) in FIRST else len(FIRST))
    for marker, reason in (("gpu", _no_gpu), ("browser", _no_browser)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        why = reason() if marked else None
        for item in marked:
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


class XdistGroups:
    """pytest-xdist 3.8 adds the group to an attribute that pytest 9.2 no longer reads: put it into the node id.

    It stays there until the process that runs the tests has sent the ids to the one that schedules them.
    """

    def __init__(self) -> None:
        self.original: list[tuple[Any, Any]] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            node_id = getattr(item, "_nodeid", item.nodeid)
            if node_id != item.nodeid:
                self.original.append((item, item._id))
                item._id = type(item._id).parse(node_id)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        for item, node_id in self.original:
            item._id = node_id


def _group(item: pytest.Item) -> str:
    fixtures = getattr(item, "fixturenames", ())
    return next((group for name, group in GROUPS.items() if name in fixtures), item.nodeid.partition("::")[0])


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop a browser, a JupyterLab or a kernel when the next test does not use it."""
    _stop_services(list(getattr(nextitem, "fixturenames", ())))


def pytest_unconfigure() -> None:
    """Stop what a test run that broke off left running."""
    _stop_services([])


def _stop_services(needed: list[str]) -> None:
    if services := sys.modules.get("tests.support.front_end.services"):
        services.stop_unused(needed)


def _no_gpu() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    import torch

    return None if torch.cuda.is_available() else "PyTorch sees no CUDA GPU"


def _no_browser() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed (pip install -e '.[dev]')"
    if importlib.util.find_spec("jupyterlab") is None:
        return "jupyterlab is not installed (pip install -e '.[lab]')"
    found = any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return None if found else "Chromium is not installed (apt-get install chromium)"


@pytest.fixture(scope="module")
def chromium() -> Any:
    """The Chromium of this test run."""
    from tests.support.front_end.services import CHROMIUM

    return CHROMIUM.get()


@pytest.fixture(scope="module")
def jupyterlab() -> Any:
    """The JupyterLab of this test run, with a page and a kernel that its notebooks share."""
    from tests.support.front_end.services import JUPYTERLAB

    return JUPYTERLAB.get()


@pytest.fixture(scope="module")
def shared_kernel() -> Callable[..., Any]:
    """Cleans the kernel of this test run, runs the given cells in it, and returns it."""
    from tests.support.front_end.services import clean_kernel

    return clean_kernel


@pytest.fixture(
    scope="module", params=[(w, c) for w in (480, 1100) for c in ("light", "dark")], ids=lambda p: f"{p[1]}-{p[0]}"
)
def any_page(request: pytest.FixtureRequest, chromium: Any) -> Iterator[Any]:
    """An empty page, narrow and wide, light and dark; nothing in it moves by itself."""
    width, scheme = request.param
    opened = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded traces beside the repository, or the one GPULAB_SHARED names."""
    folder = Path(os.environ.get("GPULAB_SHARED", ROOT.parent / "shared"))
    if not (folder / "traces").is_dir():
        pytest.skip(f"no folder traces/ in {folder}; set GPULAB_SHARED to where the recorded traces lie")
    return folder


@pytest.fixture(scope="session")
def recorded(shared: Path) -> Callable[[str], Path]:
    """A recorded trace by its file name; the test is skipped where that one is missing."""

    def find(name: str) -> Path:
        path = shared / "traces" / name
        if not path.exists():
            pytest.skip(f"the recorded trace {name} is not in {path.parent}")
        return path

    return find


@pytest.fixture(scope="session", params=SHARED)
def both(request: pytest.FixtureRequest, recorded: Callable[[str], Path]) -> tuple[Any, Oracle]:
    """The run of each recorded trace, and what the oracle says of the same file; never two at once."""
    from gpulab import trace

    path = recorded(f"{request.param}.json.gz")
    return trace.read(path), Oracle(path)


@pytest.fixture
def gpu() -> Any:
    """Plays a program on a stand-in for a virtual GPU."""
    from tests.support.virtual.memory_programs import stand_in_runner

    return stand_in_runner()


@pytest.fixture
def opened() -> Iterator[Any]:
    """Opens Nvml under an environment, and closes it; CUDA counts as the driver does unless told otherwise."""
    from gpulab.sensors.nvidia.nvml import Nvml

    open_ones = []

    def make(**environ: str) -> Nvml:
        nvml = Nvml({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **environ})
        nvml.open()
        open_ones.append(nvml)
        return nvml

    yield make
    for nvml in open_ones:
        nvml.close()


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Run the test in an empty folder; fail if it leaves files, threads, processes or settings changed.

    The check runs after the test; call the fixture to run it earlier.
    """
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    # Sockets are made in it, whose paths must be short: a DataLoader's worker that cannot make one hangs for ever.
    spare = Path(tempfile.mkdtemp(prefix="g-"))
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    before = _process_state()

    def check() -> None:
        assert [path.name for path in here.iterdir()] == [], "files in the working directory"
        _, running = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - children, timeout=5)
        assert not running, "processes"
        # After the processes: each removes its own when it ends.
        assert [path.name for path in spare.iterdir() if not _of_torch(path.name)] == [], "temporary files"
        after = _process_state()
        changed = {what: (value, after.get(what)) for what, value in before.items() if value != after.get(what)}
        added = {what: (None, value) for what, value in after.items() if what not in before and "torch" not in what}
        assert not changed | added, "left behind, as what: (before, after)"

    children = set(psutil.Process().children(recursive=True))
    yield check
    try:
        check()
    finally:
        shutil.rmtree(spare)


def _of_torch(name: str) -> bool:
    """PyTorch makes its compiler's cache folder, and a variable that names it, with the first optimizer; we do not."""
    return name.startswith(("torchinductor_", "TORCHINDUCTOR_"))


# A DataLoader's queues and the history of an IPython shell of an earlier test end their own threads a moment later.
_OTHERS_THREADS = ("QueueFeederThread", "IPythonHistorySavingThread")


def _process_state() -> dict[str, Any]:
    """What a recording could leave behind in this process; torch's part only where torch is imported."""
    # A DataLoader's queues end their own threads a moment after the last worker went.
    threads = sorted(thread.name for thread in threading.enumerate() if thread.name not in _OTHERS_THREADS)
    state: dict[str, Any] = {
        "threads": threads,
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.gettrace(), sys.getprofile()),
        "streams": (sys.stdout, sys.stderr),
    }
    # One entry a variable, so that a failure shows the one that changed and not the whole environment.
    state |= {f"${name}": value for name, value in os.environ.items() if not _of_torch(name) and "PYTEST" not in name}
    if "torch" in sys.modules:
        state |= _torch_state(sys.modules["torch"])
    return state


def _torch_state(torch: Any) -> dict[str, Any]:
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    return {
        "torch profiler": torch._C._autograd._profiler_enabled(),
        "torch threads": torch.get_num_threads(),
        "torch settings": (
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
        ),
        "torch DataLoader": (
            dataloader._BaseDataLoaderIter.__next__,
            dataloader._SingleProcessDataLoaderIter.__next__,
            dataloader._MultiProcessingDataLoaderIter.__next__,
        ),
        "torch optimizer hooks": (
            len(optimizer._global_optimizer_pre_hooks),
            len(optimizer._global_optimizer_post_hooks),
        ),
    }
