"""A script in a trial sees the files as if it had changed them, and the real ones stay as they are."""

from __future__ import annotations

import glob
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab.trial.effects import overlay as overlay_module
from gpulab.trial.effects.overlay import Overlay
from gpulab.trial.effects.program_guard import RefusedChangeError
from gpulab.trial.effects.redirected_files import RedirectedFiles

NAMES = ("a", "b", "sub/c", "sub/d", "sub", "new", "new/e", "sub/deep/f", "sub/deep")


def fill(folder):
    """A folder with files in it, as a script finds it."""
    (folder / "sub" / "deep").mkdir(parents=True)
    for name in ("a", "sub/c", "sub/deep/f"):
        (folder / name).write_text(name)
    return folder


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text() if path.is_file() else None for path in folder.rglob("*")}


def write(path):
    Path(path).write_text("written")


def append(path):
    with open(path, "a") as file:
        file.write("+")


def overwrite_the_first_byte(path):
    with open(path, "r+b") as file:
        file.write(b"!")


def create(path):
    with open(path, "x") as file:
        file.write("new")


def low_level_append(path):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"-")
    os.close(descriptor)


# Looked up when they are called: a trial replaces functions of `os`.
OPERATIONS = {
    "read": lambda path: Path(path).read_text(),
    "exists": os.path.exists,
    "is a folder": lambda path: Path(path).is_dir(),
    "size": lambda path: Path(path).stat().st_size if Path(path).is_file() else None,
    "list": lambda path: sorted(os.listdir(path)),
    "scan": lambda path: sorted((entry.name, entry.is_dir()) for entry in os.scandir(path)),
    "glob": lambda path: sorted(os.path.basename(each) for each in glob.glob(f"{path}/**", recursive=True)),
    "walk": lambda path: sorted((sorted(folders), sorted(files)) for _, folders, files in os.walk(path)),
    "write": write,
    "append": append,
    "change": overwrite_the_first_byte,
    "create": create,
    "append below": low_level_append,
    "touch": lambda path: Path(path).touch(),
    "truncate": lambda path: os.truncate(path, 1),
    "mkdir": lambda path: os.mkdir(path),
    "makedirs": lambda path: os.makedirs(path, exist_ok=True),
    "unlink": lambda path: os.unlink(path),
    "rmdir": lambda path: os.rmdir(path),
    "rmtree": shutil.rmtree,
    "link": lambda path: os.symlink("a", f"{path}.link"),
    "read the link": lambda path: os.readlink(f"{path}.link"),
    "read through the link": lambda path: Path(f"{path}.link").read_text(),
    "copy with attributes": lambda path: shutil.copy2(path, f"{path}.copy"),
    "absolute link": lambda path: os.symlink(os.path.abspath(path), f"{path}.absolute"),
    "read through the absolute link": lambda path: Path(f"{path}.absolute").read_text(),
    "mode": lambda path: os.chmod(path, 0o600),
    "save": lambda path: np.save(Path(path).with_suffix(".npy"), np.ones(2)),
}
PAIRS = {
    "rename": lambda one, two: os.rename(one, two),
    "copy": shutil.copy,
    "replace": lambda one, two: Path(one).replace(two),
}


def outcome(function, *paths):
    """What an operation returns, or the kind of its error."""
    try:
        return function(*paths)
    except (OSError, UnicodeError) as error:
        return type(error)


STEP = st.one_of(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(sorted(PAIRS)), st.sampled_from(NAMES), st.sampled_from(NAMES)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=12))
def test_any_operations_have_the_results_that_they_have_on_real_files(steps):
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        real, seen = fill(root / "real"), fill(root / "seen")
        before = contents(seen)
        (root / "changed").mkdir()
        results = []
        with RedirectedFiles(Overlay(root / "changed", [])).active():
            for name, *paths in steps:
                function = OPERATIONS.get(name) or PAIRS[name]
                result = outcome(function, *(str(seen / path) for path in paths))
                if result is RefusedChangeError:  # a real folder is not renamed; the rest would differ
                    break
                results.append(result if not isinstance(result, str) else result.replace(str(seen), "."))
        for (name, *paths), result in zip(steps, results, strict=False):
            function = OPERATIONS.get(name) or PAIRS[name]
            expected = outcome(function, *(str(real / path) for path in paths))
            if isinstance(expected, str):
                expected = expected.replace(str(real), ".")
            if name not in ("copy", "rmtree", "replace"):  # they return a path, or an error of any step inside
                assert result == expected, (name, paths)
        assert contents(seen) == before


def test_relative_paths_and_a_changed_folder_are_followed(tmp_path, monkeypatch):
    folder = fill(tmp_path / "project")
    (tmp_path / "changed").mkdir()
    monkeypatch.chdir(folder)
    overlay = Overlay(tmp_path / "changed", [])
    with RedirectedFiles(overlay).active():
        Path("runs").mkdir()
        os.chdir("runs")
        Path("log.txt").write_text("1")
        assert Path("log.txt").read_text() == Path(folder, "runs", "log.txt").read_text() == "1"
        os.chdir(folder)
        assert sorted(os.listdir()) == ["a", "runs", "sub"]
    assert sorted(path.name for path in folder.iterdir()) == ["a", "sub"]
    assert overlay.changed == [str(folder / "runs"), str(folder / "runs" / "log.txt")]


def test_a_folder_with_two_names_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the test leaves the process
    folder = fill(tmp_path / "project")
    (tmp_path / "changed").mkdir()
    (tmp_path / "link").symlink_to(folder)
    with RedirectedFiles(Overlay(tmp_path / "changed", [])).active():
        (tmp_path / "link" / "new").write_text("1")
        assert (folder / "new").read_text() == "1"
        (folder / "deeper").mkdir()
        (folder / "deeper" / "up").symlink_to("../a")
        assert (tmp_path / "link" / "deeper" / "up").read_text() == "a"
        assert os.readlink(folder / "deeper" / "up") == "../a"
        os.chdir(folder / "deeper")
        assert Path.cwd() == folder / "deeper"
        os.chdir(tmp_path)
    assert contents(folder).keys() == {"a", "sub", "sub/c", "sub/deep", "sub/deep/f"}


def test_descriptors_of_real_files_change_nothing(tmp_path):
    folder = fill(tmp_path / "project")
    (tmp_path / "changed").mkdir()
    before = (folder / "a").stat()
    with RedirectedFiles(Overlay(tmp_path / "changed", [])).active(), open(folder / "a", "rb") as file:
        os.utime(file.fileno(), (0, 0))
        os.fchmod(file.fileno(), 0o600)
        os.chmod(folder / "a", 0o600)
        os.utime(folder / "a", (0, 0))
    after = (folder / "a").stat()
    assert (after.st_mode, after.st_mtime) == (before.st_mode, before.st_mtime)


def test_what_is_written_directly_stays(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (tmp_path / "changed").mkdir()
    overlay = Overlay(tmp_path / "changed", [cache])
    with RedirectedFiles(overlay).active():
        (cache / "compiled").write_text("kept")
        (cache / "compiled").rename(cache / "renamed")
    assert contents(cache) == {"renamed": "kept"}
    assert not overlay.changed


def test_a_large_file_is_not_copied_to_be_changed(tmp_path, monkeypatch):
    folder = fill(tmp_path / "project")
    (tmp_path / "changed").mkdir()
    monkeypatch.setattr(overlay_module, "_MAX_COPY_BYTES", 0)
    with RedirectedFiles(Overlay(tmp_path / "changed", [])).active():
        with pytest.raises(RefusedChangeError, match="large file"):
            append(folder / "a")
        write(folder / "a")  # a new file needs no copy
    assert (folder / "a").read_text() == "a"


def test_every_function_is_as_before_afterwards(tmp_path):
    before = {name: getattr(os, name) for name in dir(os)}
    with RedirectedFiles(Overlay(tmp_path, [])).active():
        assert os.open is not before["open"]
    assert {name: getattr(os, name) for name in dir(os)} == before


LIMITED = """
import os, subprocess, sys
from pathlib import Path
from gpulab.trial.effects.write_limits import allow_writes_only_in
allowed, refused = Path(sys.argv[1]), Path(sys.argv[2])
if not allow_writes_only_in([allowed, Path("/dev"), Path("/none")]):
    print("unsupported")
    raise SystemExit
(allowed / "new").write_text("x")
(allowed / "sub").mkdir()
(allowed / "new").rename(allowed / "sub" / "moved")
failures = 0
for change in (
    lambda: (refused / "new").write_text("x"),
    lambda: (refused / "a").unlink(),
    lambda: (refused / "a").open("r+"),
    lambda: os.truncate(refused / "a", 0),
    lambda: (refused / "folder").mkdir(),
    lambda: subprocess.run(["touch", str(refused / "new")], check=True, stderr=subprocess.DEVNULL),
):
    try:
        change()
    except (PermissionError, subprocess.CalledProcessError):
        failures += 1
print(failures, (refused / "a").read_text())
"""


def test_the_kernel_refuses_writes_elsewhere(tmp_path):
    allowed, refused = tmp_path / "allowed", tmp_path / "refused"
    allowed.mkdir(), refused.mkdir()
    (refused / "a").write_text("kept")
    command = [sys.executable, "-c", LIMITED, str(allowed), str(refused)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split()
    if output == ["unsupported"]:
        pytest.skip("this kernel has no Landlock")
    assert output == ["6", "kept"]
    assert contents(refused) == {"a": "kept"}
    assert set(contents(allowed)) == {"sub", str(pathlib.PurePath("sub", "moved"))}
