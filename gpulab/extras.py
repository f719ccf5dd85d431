"""Optional packages: whether they are installed, and the error that names the extra which installs them."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from gpulab.errors import GpulabError


def require_extra(extra: str, *modules: str, problem: str) -> None:
    """Raise GpulabError if one of these modules is missing.

    Args:
        extra: name of the extra of gpulab that installs the modules, "charts".
        modules: names of top-level modules, "matplotlib".
        problem: what does not work without them, a sentence.
    """
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        raise GpulabError(problem, why=f"not installed: {', '.join(missing)}", fix=install_command(extra))


def is_installed(module: str) -> bool:
    """Return whether a top-level module can be imported, without importing it."""
    return sys.modules[module] is not None if module in sys.modules else find_spec(module) is not None


def install_command(extra: str) -> str:
    """Return the command that installs an extra of gpulab."""
    return f'pip install "gpulab[{extra}]"'
