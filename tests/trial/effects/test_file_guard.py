"""The guard of a trial: a cell changes no file outside the temporary folder, starts no program and sends nothing."""

from __future__ import annotations

import builtins
import io
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from multiprocessing.connection import Listener
from pathlib import Path

import numpy as np
import pytest
import torch

from gpulab.trial.effects.file_guard import FileGuard
from gpulab.trial.effects.program_guard import RefusedChangeError


def sent_to(address):
    with socket.socket(type=socket.SOCK_DGRAM) as connection:
        connection.sendto(b"x", address)


EFFECTS = {
    "open": lambda path: builtins.open(path / "new.txt", "w"),  # noqa: SIM115
    "append": lambda path: builtins.open(path / "old.txt", "a"),  # noqa: SIM115
    "io.open": lambda path: io.open(path / "new.txt", "wb"),  # noqa: SIM115, UP020
    "os.open": lambda path: os.open(path / "new.txt", os.O_CREAT | os.O_WRONLY),
    "write_text": lambda path: (path / "new.txt").write_text("x"),
    "mkdir": lambda path: (path / "checkpoints").mkdir(),
    "makedirs": lambda path: os.makedirs(path / "a" / "b"),
    "unlink": lambda path: (path / "old.txt").unlink(),
    "rename": lambda path: (path / "old.txt").rename(path / "new.txt"),
    "rmtree": lambda path: shutil.rmtree(path),
    "copy": lambda path: shutil.copy(path / "old.txt", path / "new.txt"),
    "numpy": lambda path: np.save(path / "new.npy", np.ones(2)),
    "program": lambda path: subprocess.run(["touch", path / "new.txt"], check=True),
    "system": lambda path: os.system(f"touch {path}/new.txt"),
    "posix_spawn": lambda path: os.posix_spawn("/bin/touch", ["touch", str(path / "new.txt")], {}),
    "datagram": lambda path: sent_to(("127.0.0.1", 9)),
    "connection": lambda path: socket.create_connection(("127.0.0.1", 9), timeout=1),
}


@pytest.fixture
def folder(tmp_path):
    """A folder with a file; the folder for temporary files contains it, too."""
    (tmp_path / "old.txt").write_text("old")
    return tmp_path


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("effect", EFFECTS)
def test_an_effect_is_refused(folder, effect):
    guard = FileGuard()
    with guard.active({}), pytest.raises(RefusedChangeError):
        EFFECTS[effect](folder)
    assert guard.refused
    assert contents(folder) == {"old.txt": "old"}


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="this system has no local sockets")
def test_multiprocessing_removes_its_own_sockets():
    listener = Listener(family="AF_UNIX")  # as workers do that share tensors; it lies in a folder of multiprocessing
    address, guard = Path(listener.address), FileGuard()
    with guard.active({}):
        listener.close()
    assert not guard.refused
    assert not address.exists()


def test_afterwards_everything_is_as_before(folder):
    names = [(builtins, "open"), (io, "open"), (os, "open"), (os, "mkdir"), (subprocess, "Popen"), (os, "system")]
    before = [getattr(owner, name) for owner, name in names]
    writer, connect = torch._C.PyTorchFileWriter, socket.socket.connect
    with FileGuard().active({}):
        pass
    assert [getattr(owner, name) for owner, name in names] == before
    assert torch._C.PyTorchFileWriter is writer
    assert socket.socket.connect is connect
    (folder / "new.txt").write_text("new")


def test_reading_and_temporary_files_are_allowed(folder):
    guard = FileGuard()
    with guard.active({}):
        assert (folder / "old.txt").read_text() == "old"
        with tempfile.TemporaryDirectory() as temporary:
            (Path(temporary) / "cache").write_text("x")
        folder.mkdir(exist_ok=True)
    assert guard.refused == []


def test_a_path_that_leaves_the_temporary_folder_is_refused(folder):
    with FileGuard().active({}):
        temporary = Path(tempfile.gettempdir())
        (temporary / "made.txt").write_text("new")
        outside = temporary / os.path.relpath(folder, temporary) / "old.txt"
        for effect in (
            lambda: outside.write_text("new"),
            lambda: (temporary / "made.txt").replace(folder / "old.txt"),
            lambda: (temporary / "link").symlink_to(folder),
        ):
            with pytest.raises(RefusedChangeError):
                effect()
    assert contents(folder) == {"old.txt": "old"}


def test_checkpoints_go_nowhere(folder):
    guard = FileGuard()
    buffer = io.BytesIO()
    with guard.active({}):
        torch.save({"weight": torch.ones(1000)}, folder / "new.txt")
        torch.save({"weight": torch.ones(1000)}, folder / "old.txt")
        torch.save({"weight": torch.ones(3)}, buffer)
    assert contents(folder) == {"old.txt": "old"}
    assert torch.load(io.BytesIO(buffer.getvalue()))["weight"].sum() == 3


def test_the_open_of_a_notebook_is_guarded_and_restored(folder):
    namespace = {"open": io.open}
    with FileGuard().active(namespace), pytest.raises(RefusedChangeError):
        namespace["open"](folder / "new.txt", "w")
    assert namespace["open"] is io.open


def test_threads_from_before_the_trial_may_write(folder):
    begin, outcome = threading.Event(), []

    def write():
        begin.wait(10)
        (folder / "log.txt").write_text("x")
        outcome.append("written")

    thread = threading.Thread(target=write)
    thread.start()
    with FileGuard().active({}):
        begin.set()
        thread.join(10)
    assert outcome == ["written"]
