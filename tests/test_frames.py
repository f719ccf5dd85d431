from __future__ import annotations

import functools
import sys
import threading
import types

import pytest

from gpulab.sensors.frames import user_line

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
