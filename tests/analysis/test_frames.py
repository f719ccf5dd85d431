from __future__ import annotations

import functools
import json
import logging
import sys
import threading
import types

import pytest

from gpulab.sensors.host import frames
from gpulab.sensors.host.frames import called, user_line

CELL = "/somewhere/ipykernel_4711/1234567.py"
FILE = "/home/me/project/data.py"


def line_in(*sources: tuple[str, str, str]) -> str | None:
    """What is told from inside the last source: each (file, module, source) calls the next as `inner()`."""
    told = []
    call = lambda: told.append(user_line(sys._getframe(1)))  # noqa: E731
    for file, module, source in reversed(sources):
        # partial(exec) is C: it puts no frame of this file between theirs.
        call = functools.partial(exec, compile(source, file, "exec"), {"inner": call, "__name__": module})
    call()
    return told[0]


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        (CELL, "\n\ninner()", "cell line 3"),
        ("<ipython-input-7-0123456789ab>", "\ninner()", "cell line 2"),
        ("C:\\Temp\\ipykernel_12\\34.py", "inner()", "cell line 1"),
        (CELL, "def decode():\n    inner()\ndecode()", "decode (cell line 2)"),
        (FILE, "class A:\n def __getitem__(self, i):\n  return inner()\nA()[0]", "__getitem__ (data.py:3)"),
        (FILE, "\ninner()", "data.py line 2"),
        ("D:\\me\\data.py", "\ninner()", "data.py line 2"),
        ("<stdin>", "inner()", "<stdin> line 1"),
        (FILE, "def load():\n  return [\n    inner() for _ in 'a']\nload()", "load (data.py:3)"),
        (CELL, "def load():\n  return sum(inner() or 0 for _ in 'a')\nload()", "load (cell line 2)"),
        (CELL, "[inner() for _ in 'a']", "cell line 1"),
    ],
)
def test_a_line_is_told_as_a_person_would_say_it(file, source, expected):
    assert line_in((file, "__main__", source)) == expected


LIBRARY = "def call():\n    inner()\ncall()"


@pytest.mark.parametrize(
    ("file", "module"),
    [
        (f"{sys.base_prefix}/lib/python3.11/site-packages/PIL/Image.py", "PIL.Image"),
        ("/home/me/project/.venv/lib/python3.12/site-packages/timm/data.py", "timm.data"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy.core"),
        (types.__file__, "types"),
        ("/home/me/src/pytorch/torch/nn/modules/module.py", "torch.nn.modules.module"),
        ("/home/me/src/gpulab/gpulab/capture/marks.py", "gpulab.capture.marks"),
        ("<string>", "data"),
        ("<eval_with_key>.0", "torch.fx"),
        ("<frozen importlib._bootstrap>", "importlib._bootstrap"),
    ],
)
def test_libraries_are_not_the_users_lines(file, module):
    users = (FILE, "__main__", "def train():\n  inner()\ntrain()")
    assert line_in(users, (file, module, LIBRARY)) == "train (data.py:2)"


def test_the_innermost_of_the_users_lines_is_told_even_under_a_library():
    cell = (CELL, "__main__", "for _ in 'a':\n  inner()")
    torch = ("/x/site-packages/torch/utils/data/dataloader.py", "torch.utils.data.dataloader", LIBRARY)
    dataset = (FILE, "data", "def __getitem__():\n\n  inner()\n__getitem__()")
    pillow = ("/x/site-packages/PIL/Image.py", "PIL.Image", LIBRARY)
    assert line_in(cell, torch, dataset, pillow) == "__getitem__ (data.py:3)"


def test_what_a_lesson_profiles_counts_as_the_users():
    workload = ("/x/site-packages/gpulab/workloads/slow.py", "gpulab.workloads.slow", LIBRARY)
    assert line_in((CELL, "__main__", "inner()"), workload) == "call (slow.py:2)"


def test_where_no_line_is_the_users_nothing_is_told():
    assert user_line(None) is None
    told = []
    thread = threading.Thread(target=functools.partial(exec, LIBRARY, {"inner": lambda: told.append(sys._getframe(1))}))
    thread.start()
    thread.join()
    assert user_line(told[0]) is None


# What the user's line called.


@pytest.fixture
def library():
    """A module of a library whose functions tell, as `told`, what the user's line called."""
    told = []
    source = """
def hook(*_): tell()
def _open(): tell()
def open(): _open()
def wrapped(function):
    def wrapper(): function()
    return wrapper
class Optimizer:
    def step(self): tell()
step = wrapped(Optimizer().step)
private = _open
"""
    module = types.ModuleType("lib.images")
    module.told, module.tell = told, lambda: told.append(called(sys._getframe(1)))
    exec(compile(source, "/x/site-packages/lib/images.py", "exec"), module.__dict__)
    sys.modules["lib.images"] = module
    yield module
    del sys.modules["lib.images"]


def test_what_the_users_line_called_is_told_not_what_that_called_in_turn(library):
    library.open()
    json.dumps(object, default=library.hook)
    assert library.told == ["lib.images.open", "json.dumps"]


def test_a_method_is_told_with_its_class(library):
    handler = logging.Handler()
    handler.emit = library.hook
    logger = logging.Logger("here")
    logger.addHandler(handler)
    logger.info("hello")
    library.Optimizer().step()
    assert library.told == ["logging.Logger.info", "lib.images.Optimizer.step"]


def test_before_python_3_11_code_does_not_know_its_class_and_the_module_is_asked(library):
    searched = frames._qualified.__wrapped__
    older = types.SimpleNamespace(co_name="step")
    library.Optimizer.step = types.SimpleNamespace(__code__=older)
    assert searched(older, "lib.images") == "Optimizer.step"
    assert searched(types.SimpleNamespace(co_name="open"), "lib.images") == "open"


def test_wrappers_that_a_library_puts_around_its_functions_are_looked_through(library):
    library.step()
    assert library.told == ["lib.images.Optimizer.step"]


def test_a_private_function_is_better_than_none(library):
    library.private()
    assert library.told == ["lib.images._open"]


def test_a_line_that_runs_by_itself_called_nothing():
    assert called(sys._getframe()) is None
    assert called(None) is None


def test_gpulabs_own_hooks_are_not_what_the_user_called(library):
    hooked = types.ModuleType("gpulab.capture.marks")
    hooked.original = library.open
    exec(compile("def marked():\n    original()", "/x/site-packages/gpulab/capture/marks.py", "exec"), hooked.__dict__)
    hooked.marked()
    assert library.told == ["lib.images.open"]
