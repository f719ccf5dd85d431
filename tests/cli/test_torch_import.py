"""The moment at which `gpulab run` starts to record: when the program has imported PyTorch, whatever it did before."""

import importlib
import importlib.util
import sys

import pytest

from gpulab.cli import torch_import

NAME = "package_in_place_of_torch"


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """What the function was called with: whether the package was complete. Stands in a package for torch."""
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "__init__.py").write_text("complete = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(torch_import, "TORCH", NAME)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    seen = []
    torch_import.call_after_torch_import(lambda: seen.append(getattr(sys.modules[NAME], "complete", False)))
    yield seen
    sys.modules.pop(NAME, None)


def test_the_function_is_called_once_when_the_import_ends(calls):
    finders = len(sys.meta_path)
    module = importlib.import_module(NAME)
    assert calls == [True]
    assert len(sys.meta_path) == finders - 1
    assert type(module.__loader__).__module__ == "_frozen_importlib_external"
    assert module.__spec__.loader is module.__loader__
    del sys.modules[NAME]
    importlib.import_module(NAME)
    assert calls == [True]


def test_packages_may_look_for_it_before_anything_imports_it(calls, tmp_path):
    specs = [importlib.util.find_spec(NAME) for _ in range(3)]
    assert {spec.origin for spec in specs} == {str(tmp_path / NAME / "__init__.py")}
    assert specs[0].loader.get_source(NAME) == "complete = True\n"
    assert calls == []
    importlib.import_module(NAME)
    assert calls == [True]


def test_an_import_that_fails_does_not_count(calls, tmp_path):
    (tmp_path / NAME / "__init__.py").write_text("import a_package_that_is_missing\n")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_missing"):
        importlib.import_module(NAME)
    assert calls == []
    (tmp_path / NAME / "__init__.py").write_text("complete = True  # now\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert calls == [True]


def test_without_the_package_its_import_fails_as_usual(monkeypatch):
    monkeypatch.setattr(torch_import, "TORCH", "a_package_that_is_missing")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    torch_import.call_after_torch_import(pytest.fail)
    assert importlib.util.find_spec("a_package_that_is_missing") is None
    with pytest.raises(ModuleNotFoundError, match="No module named 'a_package_that_is_missing'"):
        importlib.import_module("a_package_that_is_missing")


def test_a_spec_that_was_found_early_may_be_executed(calls):
    spec = importlib.util.find_spec(NAME)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    assert module.complete
    assert calls == [True]
