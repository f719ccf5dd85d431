from __future__ import annotations

import functools
import json
import logging
import sys
import threading
import types

import pytest

from gpulab.sensors.host import frames
from gpulab.sensors.host.frames import called_function, library_path, user_line

CELL = "/somewhere/ipykernel_4711/1234567.py"
FILE = "/home/me/project/data.py"


def line_in(*sources: tuple[str, str, str]) -> str | None:
    """Return the user line as seen from the last source; each (file, module, source) calls the next as `inner()`."""
    lines = []
    call = lambda: lines.append(user_line(sys._getframe(1)))  # noqa: E731
    for file, module, source in reversed(sources):
        # partial(exec) is C: it puts no frame of this file between theirs.
        call = functools.partial(exec, compile(source, file, "exec"), {"inner": call, "__name__": module})
    call()
    return lines[0]


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
def test_a_line_is_formatted_as_function_and_location(file, source, expected):
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
        ("/home/me/src/gpulab/gpulab/capture/hooks/loader_hooks.py", "gpulab.capture.hooks.loader_hooks"),
        ("<string>", "data"),
        ("<eval_with_key>.0", "torch.fx"),
        ("<frozen importlib._bootstrap>", "importlib._bootstrap"),
    ],
)
def test_libraries_are_not_the_users_lines(file, module):
    users = (FILE, "__main__", "def train():\n  inner()\ntrain()")
    assert line_in(users, (file, module, LIBRARY)) == "train (data.py:2)"


def test_the_innermost_user_line_is_found_under_library_frames():
    cell = (CELL, "__main__", "for _ in 'a':\n  inner()")
    torch = ("/x/site-packages/torch/utils/data/dataloader.py", "torch.utils.data.dataloader", LIBRARY)
    dataset = (FILE, "data", "def __getitem__():\n\n  inner()\n__getitem__()")
    pillow = ("/x/site-packages/PIL/Image.py", "PIL.Image", LIBRARY)
    assert line_in(cell, torch, dataset, pillow) == "__getitem__ (data.py:3)"


def test_code_that_a_lesson_profiles_counts_as_user_code():
    workload = ("/x/site-packages/gpulab/workloads/slow.py", "gpulab.workloads.slow", LIBRARY)
    assert line_in((CELL, "__main__", "inner()"), workload) == "call (slow.py:2)"


def test_without_a_user_line_the_result_is_none():
    assert user_line(None) is None
    caller_frames = []
    thread = threading.Thread(
        target=functools.partial(exec, LIBRARY, {"inner": lambda: caller_frames.append(sys._getframe(1))})
    )
    thread.start()
    thread.join()
    assert user_line(caller_frames[0]) is None


# What the user's line called.


@pytest.fixture
def library():
    """A library module whose functions record in `calls` what the user's line called."""
    calls = []
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
    module.calls, module.tell = calls, lambda: calls.append(called_function(sys._getframe(1)))
    exec(compile(source, "/x/site-packages/lib/images.py", "exec"), module.__dict__)
    sys.modules["lib.images"] = module
    yield module
    del sys.modules["lib.images"]


def test_the_library_function_called_directly_by_the_user_line_is_returned(library):
    library.open()
    json.dumps(object, default=library.hook)
    assert library.calls == ["lib.images.open", "json.dumps"]


def test_a_method_is_named_with_its_class(library):
    handler = logging.Handler()
    handler.emit = library.hook
    logger = logging.Logger("here")
    logger.addHandler(handler)
    logger.info("hello")
    library.Optimizer().step()
    assert library.calls == ["logging.Logger.info", "lib.images.Optimizer.step"]


def test_before_python_3_11_the_class_is_looked_up_in_the_module(library):
    searched = frames._qualified.__wrapped__
    older = types.SimpleNamespace(co_name="step")
    library.Optimizer.step = types.SimpleNamespace(__code__=older)
    assert searched(older, "lib.images") == "Optimizer.step"
    assert searched(types.SimpleNamespace(co_name="open"), "lib.images") == "open"


def test_wrappers_around_library_functions_are_skipped(library):
    library.step()
    assert library.calls == ["lib.images.Optimizer.step"]


def test_a_private_function_is_used_if_there_is_no_public_one(library):
    library.private()
    assert library.calls == ["lib.images._open"]


def test_a_line_without_a_library_call_has_no_called_function():
    assert called_function(sys._getframe()) is None
    assert called_function(None) is None


def test_hooks_of_gpulab_do_not_count_as_library_calls(library):
    hooked = types.ModuleType("gpulab.capture.hooks.loader_hooks")
    hooked.original = library.open
    exec(
        compile("def marked():\n    original()", "/x/site-packages/gpulab/capture/hooks/loader_hooks.py", "exec"),
        hooked.__dict__,
    )
    hooked.marked()
    assert library.calls == ["lib.images.open"]


def path_within(*sources):
    """What `library_path` returns in the last of these modules; each has a name, and a `run` that calls the next one's.

    The first one is called by this line.
    """
    paths = []
    run = lambda: paths.append(library_path(sys._getframe(1)))  # noqa: E731  (a def of its own would be a user's frame)
    for name, source in reversed(sources):
        variables = {"__name__": name, "inner": run}
        exec(compile(source, f"/x/site-packages/{name.replace('.', '/')}.py", "exec"), variables)
        run = variables["run"]
    run()
    return paths[0]


CALL = "def run(): inner()"
TRAINER = """
class Trainer:
    def fit(self): self._loop()
    def _loop(self): inner()
def run(): Trainer().fit()
"""


def test_the_path_of_libraries_has_public_functions_only():
    assert path_within(("lib.trainer", TRAINER), ("lib.images", CALL)) == "trainer.run > Trainer.fit > images.run"


def test_of_pytorch_the_path_has_only_the_first_function_within_the_last_library():
    torch_adam = ("torch.optim.adam", "def run(): deeper()\ndef deeper(): inner()")
    assert path_within(("lib.trainer", TRAINER), torch_adam) == "trainer.run > Trainer.fit > adam.run"
    assert path_within(torch_adam, ("lib.trainer", CALL), torch_adam) == "trainer.run > adam.run"


def test_a_line_that_calls_pytorch_only_has_no_path():
    assert path_within(("torch.nn.linear", CALL)) is None
    assert library_path(sys._getframe()) is None
    assert library_path(None) is None


def test_imports_are_no_part_of_a_path():
    module = "code = compile('inner()', '/x/site-packages/lib/a.py', 'exec')\ndef run(): exec(code, {'inner': inner})"
    assert path_within(("lib.loader", module), ("lib.images", CALL)) == "loader.run > images.run"
