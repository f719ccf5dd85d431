"""Whether this PyTorch can be played to: every way in which it may fail is told in one line, and harms nobody."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from gpulab.user_data import selftests  # noqa: E402
from gpulab.virtual.selftest import run as versions  # noqa: E402
from gpulab.virtual.selftest.progress import read_progress  # noqa: E402
from gpulab.virtual.selftest.run import Selftest, failure, playable, selftest  # noqa: E402

ENDS_AT_ONCE = 60.0  # seconds that no process here should need


@pytest.fixture(autouse=True)
def _nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(selftests, "folder", lambda: tmp_path / "kept")
    versions.forget()
    yield
    versions.forget()


def ended(how):
    """What is said of a self-test whose program does this once it has begun."""
    begun = f"from gpulab.virtual.selftest import program; program._run = lambda: (program._part('autocast'), {how})"
    return failure(f"import os, signal, time; {begun}; program.main()", ENDS_AT_ONCE)


def changed(what):
    """What is said of a self-test of a PyTorch in which this is otherwise."""
    return failure(f"import torch; {what}; from gpulab.virtual.selftest.program import main; main()", 180.0)


def test_it_is_passed_here():
    told = selftest()
    assert told.ok, told.why
    assert told.torch == torch.__version__
    assert told.seconds > 0


def test_a_crash_names_what_was_tried_and_the_signal():
    assert ended("os.kill(os.getpid(), signal.SIGSEGV)") == (
        "autocast killed the process that tried it, with signal 11"
    )


def test_an_exit_names_what_was_tried_and_the_status():
    said = ended("os.write(2, b'terminate called\\nwhat(): no CUDA\\n'), os._exit(3)")
    assert said == "autocast ended the process that tried it, with status 3: what(): no CUDA"


def test_an_exception_is_told_in_one_line():
    assert ended("exec('raise AttributeError(\"no\\\\n such   thing\")')") == (
        "autocast failed: AttributeError: no such thing"
    )


def test_a_long_error_is_cut():
    said = ended("exec('raise ValueError(\"x\" * 5000)')")
    assert said.endswith(" ...")
    assert len(said) < 400


def test_a_hang_ends_after_the_time_given():
    begun = "from gpulab.virtual.selftest import program; program._part('attention')"
    assert failure(f"import time; {begun}; time.sleep(600)", 5.0) == "attention did not end within 5 s"


def test_what_other_libraries_print_is_no_answer():
    said = ended("print('done'), print('gpulab self-test is not here'), os._exit(0)")
    assert said.startswith("autocast ended the process that tried it, with status 0")


def test_a_python_that_cannot_be_started_is_said(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert "cannot start another one" in selftest().why
    monkeypatch.setattr(sys, "executable", "no/such/python")
    assert selftest().why.startswith("no process could be started")


OTHERWISE = {
    "autocast does nothing": (
        "torch.get_autocast_dtype = lambda kind: torch.float32",
        "autocast failed: WrongError: a linear layer gives",
    ),
    "an inside is gone": (
        "from torch._subclasses import fake_tensor; del fake_tensor.in_kernel_invocation_manager",
        "forward and backward failed: ",
    ),
    "nothing is put back": (
        "from gpulab.virtual.device.torch_api import patches; patches._restore = lambda *args: None",
        "PyTorch after leaving it failed: WrongError: not as before: ",
    ),
}


@pytest.fixture(scope="module")
def found():
    """What is said of each of them, tried side by side."""
    with ThreadPoolExecutor(len(OTHERWISE)) as pool:
        said = pool.map(changed, [what for what, _ in OTHERWISE.values()])
        return dict(zip(OTHERWISE, said, strict=True))


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", OTHERWISE)
def test_a_pytorch_that_is_otherwise_is_found_out(name, found):
    assert found[name] is not None
    assert found[name].startswith(OTHERWISE[name][1])


# When it is run.


def never(*given, **named):
    raise AssertionError("a process was started")


def test_a_version_that_was_tested_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(versions, "TESTED", frozenset({".".join(torch.__version__.split(".")[:2])}))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(subprocess, "run", never)
    assert playable().ok
    assert playable().seconds == 0


@pytest.mark.parametrize(("platform", "gpus"), [("darwin", 0), ("linux", 1)])
def test_it_is_tried_again_where_it_was_not_tested(monkeypatch, platform, gpus):
    calls = answered(monkeypatch, "gpulab self-test done\n")
    monkeypatch.setattr(versions, "TESTED", frozenset({".".join(torch.__version__.split(".")[:2])}))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert playable().ok
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
    assert playable().ok
    assert playable().ok
    versions.forget()  # as a new process
    assert playable() == Selftest(True, "the self-test was passed here before", torch.__version__, 0.0)
    assert len(calls) == 1


def test_a_failure_is_not_kept(monkeypatch):
    calls = answered(monkeypatch, "gpulab self-test begins: memory\ngpulab self-test failed: ValueError: 3\n")
    assert playable().why == "memory failed: ValueError: 3"
    assert not playable().ok
    assert len(calls) == 1
    versions.forget()
    assert not playable().ok
    assert len(calls) == 2


def test_a_success_holds_for_these_versions_only(monkeypatch):
    calls = answered(monkeypatch, "gpulab self-test done\n")
    playable()
    versions.forget()
    monkeypatch.setattr(versions, "_torch_version", lambda: "99.0.0")
    playable()
    assert len(calls) == 2


def test_a_folder_that_cannot_be_written_only_means_that_it_is_tried_again(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(selftests, "folder", lambda: tmp_path / "file" / "folder")
    assert selftests.keep(("torch1", "python2")) is None
    assert not selftests.worked(("torch1", "python2"))


def test_nothing_is_kept_where_the_user_wants_none(monkeypatch):
    monkeypatch.undo()
    assert selftests.folder() is None  # conftest sets GPULAB_HISTORY to "off"
    monkeypatch.delenv("GPULAB_HISTORY")
    assert selftests.folder() is not None


def test_the_answer_reads_as_a_sentence():
    told = Selftest(False, "autocast failed: ValueError: 3", "2.3.0", 4.0)
    assert str(told) == "PyTorch 2.3.0: does not work with the virtual GPU (autocast failed: ValueError: 3)"


def test_the_program_s_output_may_hold_anything():
    told = read_progress("noise\x00 gpulab self-test begins: memory\nW1 torch gpulab self-test begins: streams\n\n")
    assert (told.part, told.failure, told.done) == ("streams", None, False)
