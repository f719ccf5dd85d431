"""Whether this PyTorch can be played to: every way in which it may fail is told in one line, and harms nobody."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from gpulab.user_data import working_torch_versions  # noqa: E402
from gpulab.virtual.self_test import run as versions  # noqa: E402
from gpulab.virtual.self_test.progress import read_progress  # noqa: E402
from gpulab.virtual.self_test.run import SelftestResult, failure_of_program, selftest, selftest_result  # noqa: E402
from tests.support.tiers import every_nth  # noqa: E402

ENDS_AT_ONCE = 60.0  # seconds that no process here should need


@pytest.fixture(autouse=True)
def _nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(working_torch_versions, "folder", lambda: tmp_path / "kept")
    versions.forget_result()
    yield
    versions.forget_result()


def failure_of(code):
    """The error of a self-test whose first part, autocast, runs this code."""
    setup = f"from gpulab.virtual.self_test import program; program._run = lambda: (program._begin('autocast'), {code})"
    return failure_of_program(f"import os, signal, time; {setup}; program.main()", ENDS_AT_ONCE)


def failure_with_patch(patch):
    """The error of the self-test with a patched PyTorch."""
    program = f"import torch; {patch}; from gpulab.virtual.self_test.program import main; main()"
    return failure_of_program(program, 180.0)


@pytest.mark.full
def test_the_self_test_passes_here():
    result = selftest()
    assert result.ok, result.why
    assert result.torch_version == torch.__version__
    assert result.seconds > 0


def test_a_crash_names_the_part_and_the_signal():
    assert re.fullmatch("autocast .* signal 11", failure_of("os.kill(os.getpid(), signal.SIGSEGV)"))


def test_an_exit_names_the_part_the_status_and_the_last_line_of_stderr():
    error = failure_of("os.write(2, b'terminate called\\nwhat(): no CUDA\\n'), os._exit(3)")
    assert re.fullmatch(r"autocast .* status 3: what\(\): no CUDA", error)


def test_an_exception_is_reported_in_one_line():
    assert failure_of("exec('raise AttributeError(\"no\\\\n such   thing\")')") == (
        "autocast failed: AttributeError: no such thing"
    )


def test_a_long_error_is_cut():
    error = failure_of("exec('raise ValueError(\"x\" * 5000)')")
    assert error.endswith(" ...")
    assert len(error) < 400


@pytest.mark.full
def test_a_hang_ends_at_the_time_limit():
    setup = "from gpulab.virtual.self_test import program; program._begin('attention')"
    assert re.fullmatch("attention .* 5 s", failure_of_program(f"import time; {setup}; time.sleep(600)", 5.0))


def test_output_of_other_libraries_is_ignored():
    error = failure_of("print('done'), print('gpulab self-test is not here'), os._exit(0)")
    assert re.match("autocast .* status 0", error)


def test_a_python_that_cannot_be_started_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert "sys.executable" in selftest().why
    monkeypatch.setattr(sys, "executable", "no/such/python")
    assert "no/such/python" in selftest().why


CHANGED_PYTORCH = {
    "autocast does nothing": (
        "torch.get_autocast_dtype = lambda kind: torch.float32",
        "autocast failed: SelftestError: ",
    ),
    "an internal function is gone": (
        "from torch._subclasses import fake_tensor; del fake_tensor.in_kernel_invocation_manager",
        "forward and backward failed: ",
    ),
    "nothing is restored": (
        "from gpulab.virtual.device.torch_api import patches; patches._restore = lambda *args: None",
        "restoring PyTorch failed: SelftestError: ",
    ),
}


@pytest.fixture(scope="module")
def errors():
    """The error of the self-test for each change; all run in parallel."""
    with ThreadPoolExecutor(len(CHANGED_PYTORCH)) as pool:
        failures = pool.map(failure_with_patch, [patch for patch, _ in CHANGED_PYTORCH.values()])
        return dict(zip(CHANGED_PYTORCH, failures, strict=True))


@pytest.mark.full
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", every_nth(CHANGED_PYTORCH, 3, pytest.mark.night))
def test_a_changed_pytorch_fails(name, errors):
    assert errors[name] is not None
    assert errors[name].startswith(CHANGED_PYTORCH[name][1])


# When it is run.


def never(*given, **named):
    raise AssertionError("a process was started")


def test_a_version_that_was_tested_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(versions, "TESTED", frozenset({".".join(torch.__version__.split(".")[:2])}))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(subprocess, "run", never)
    assert selftest_result().ok
    assert selftest_result().seconds == 0


@pytest.mark.parametrize(("platform", "gpus"), [("darwin", 0), ("linux", 1)])
def test_it_is_tried_again_where_it_was_not_tested(monkeypatch, platform, gpus):
    calls = answered(monkeypatch, "gpulab self-test done\n")
    monkeypatch.setattr(versions, "TESTED", frozenset({".".join(torch.__version__.split(".")[:2])}))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert selftest_result().ok
    assert len(calls) == 1


def answered(monkeypatch, output):
    calls = []

    def run(command, **given):
        calls.append(command)
        return subprocess.CompletedProcess(command, 0, output.encode(), b"")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(versions, "TESTED", frozenset())
    return calls


def test_another_version_is_tried_once_and_its_success_is_kept(monkeypatch):
    calls = answered(monkeypatch, "gpulab self-test done\n")
    assert selftest_result().ok
    assert selftest_result().ok
    versions.forget_result()  # as a new process
    result = selftest_result()
    assert (result.ok, result.torch_version, result.seconds) == (True, torch.__version__, 0.0)
    assert len(calls) == 1


def test_a_failure_is_not_kept(monkeypatch):
    calls = answered(monkeypatch, "gpulab self-test begins: memory\ngpulab self-test failed: ValueError: 3\n")
    assert selftest_result().why == "memory failed: ValueError: 3"
    assert not selftest_result().ok
    assert len(calls) == 1
    versions.forget_result()
    assert not selftest_result().ok
    assert len(calls) == 2


def test_a_success_holds_for_these_versions_only(monkeypatch):
    calls = answered(monkeypatch, "gpulab self-test done\n")
    selftest_result()
    versions.forget_result()
    monkeypatch.setattr(versions, "_torch_version", lambda: "99.0.0")
    selftest_result()
    assert len(calls) == 2


def test_a_folder_that_cannot_be_written_only_means_that_it_is_tried_again(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(working_torch_versions, "folder", lambda: tmp_path / "file" / "folder")
    assert working_torch_versions.store_success(("torch1", "python2")) is None
    assert not working_torch_versions.has_succeeded(("torch1", "python2"))


def test_nothing_is_kept_where_the_user_wants_none(monkeypatch):
    monkeypatch.undo()
    assert working_torch_versions.folder() is None  # conftest sets GPULAB_HISTORY to "off"
    monkeypatch.delenv("GPULAB_HISTORY")
    assert working_torch_versions.folder() is not None


def test_a_result_prints_the_version_and_the_error():
    result = SelftestResult(False, "autocast failed: ValueError: 3", "2.3.0", 4.0)
    assert re.fullmatch(r".*does not work with PyTorch 2\.3\.0 \(autocast failed: ValueError: 3\)", str(result))


def test_the_output_of_the_program_may_contain_anything():
    progress = read_progress("noise\x00 gpulab self-test begins: memory\nW1 torch gpulab self-test begins: streams\n\n")
    assert (progress.part, progress.failure, progress.done) == ("streams", None, False)
