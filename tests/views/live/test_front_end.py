"""Which live output a front end is given."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpulab.views.front_end import HTML, NOTHING, WIDGET, front_end

LAB = {"content": {"allow_stdin": True}, "metadata": {"cellId": "a"}}
CONSOLE = {"content": {"allow_stdin": True}, "metadata": {}}
NBCONVERT = {"content": {"allow_stdin": False}, "metadata": {}}


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plays a kernel whose running cell was sent by this request, with these names, modules and environment."""
    for name in ("VSCODE_PID", "KAGGLE_KERNEL_RUN_TYPE"):
        monkeypatch.delenv(name, raising=False)

    def play(request: dict[str, Any], *, names: tuple[str, ...] = (), modules: tuple[str, ...] = (), **env: str) -> str:
        shell = SimpleNamespace(user_ns=dict.fromkeys(names))
        instance = SimpleNamespace(get_parent=lambda: request, shell=shell)
        base = SimpleNamespace(Kernel=SimpleNamespace(initialized=lambda: True, instance=lambda: instance))
        monkeypatch.setitem(sys.modules, "ipykernel.kernelbase", base)
        for name in modules:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return front_end()

    return play


def test_jupyterlab_and_notebook_7_get_the_widget(kernel):
    assert kernel(LAB) == WIDGET


def test_a_console_gets_nothing_because_it_cannot_redraw(kernel):
    assert kernel(CONSOLE) == NOTHING


def test_a_run_that_nobody_watches_gets_nothing_wherever_it_is(kernel):
    assert kernel(NBCONVERT, modules=("google.colab",), VSCODE_PID="1", KAGGLE_KERNEL_RUN_TYPE="Batch") == NOTHING


def test_vs_code_gets_html(kernel):
    assert kernel(LAB, VSCODE_PID="1") == HTML
    assert kernel(CONSOLE, names=("__vsc_ipynb_file__",)) == HTML


def test_colab_and_kaggle_get_html(kernel):
    assert kernel(LAB, KAGGLE_KERNEL_RUN_TYPE="Interactive") == HTML
    assert kernel(CONSOLE, modules=("google.colab",)) == HTML


def test_without_a_kernel_there_is_nothing(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel.kernelbase", raising=False)
    assert front_end() == NOTHING
