"""What gpulab does itself where IPython 7.34, the version of Colab and Kaggle, does not do it yet."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from IPython.core import magic
from IPython.core.interactiveshell import InteractiveShell

from gpulab.magics import ipython_versions
from gpulab.magics.completion import complete_line
from gpulab.magics.ipython_versions import (
    ends_with_semicolon,
    line_matcher,
    output_can_be_silenced,
    transformed_cell,
)


@pytest.mark.parametrize(
    ("code", "silent"),
    [
        ("6 * 7;", True),
        ("6 * 7;  # a comment\n\n", True),
        ("6 * 7", False),
        ("print(';')", False),
        ("x = 1; x", False),
        ("", False),
        ("'''not closed", False),
        ("  if x:\n 1;", False),
    ],
)
def test_only_a_semicolon_at_the_end_silences_a_value(code, silent):
    assert ends_with_semicolon(code) is silent


class Magics:
    def double(self, line, cell=None):
        return 2 * int((line if cell is None else cell).strip(" ;"))


def test_an_old_ipython_gets_magics_that_drop_a_silenced_value(monkeypatch):
    monkeypatch.delattr(magic, "output_can_be_silenced")
    double = output_can_be_silenced(Magics.double)
    assert double.__name__ == "double"
    assert (double(Magics(), "21"), double(Magics(), "21;")) == (42, None)
    assert (double(Magics(), "x;", "21"), double(Magics(), "x", "21;")) == (42, None)


def test_a_new_ipython_drops_it_by_itself():
    assert output_can_be_silenced(Magics.double) is Magics.double


def test_the_code_of_the_cell_is_ipythons_own_if_it_passes_it():
    info = SimpleNamespace(transformed_cell="x = 1\n", raw_cell="ignored")
    assert transformed_cell(SimpleNamespace(), info, "ignored") == "x = 1\n"


@pytest.mark.parametrize(("body", "code"), [("x = = 1", "x = = 1"), ("%time", None)])
def test_an_old_ipython_is_asked_to_transform_the_cell_below_the_magic(body, code):
    def transform(text: str) -> str:
        if text.startswith("%"):
            raise RuntimeError("another extension's mistake")
        return text

    info = SimpleNamespace(raw_cell=f"%%gpuprofile\n{body}")
    assert transformed_cell(SimpleNamespace(transform_cell=transform), info, body) == code


@pytest.mark.parametrize(
    ("text", "token", "words"),
    [
        ("%%gpuprofile --le", "--le", ["--level"]),
        ("%%gpuprofile --level s", "s", ["sensors"]),
        ("%gpuwhy no_w", "no_w", ["no_workers"]),
        ("%%gpuprofile --no-l", "l", ["live"]),
        ("x = 1", "1", []),
    ],
)
def test_an_old_ipython_completes_the_words_of_a_line(monkeypatch, text, token, words):
    monkeypatch.setattr(ipython_versions, "HAS_MATCHER_CONTEXT", False)
    shell = SimpleNamespace(Completer=SimpleNamespace(text_until_cursor=text))
    assert line_matcher(shell, complete_line)(token) == words


def test_the_installed_ipython_still_has_what_gpulab_uses_of_it():
    assert hasattr(InteractiveShell, "run_cell_async")
    assert hasattr(InteractiveShell, "transform_cell")
