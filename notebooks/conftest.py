"""How nbval compares stored outputs with new ones: what cannot be the same twice is left out, text stays strict."""

from __future__ import annotations

from typing import Any

# Reports carry times and pictures in these; what they claim stands beside them as text/plain, which is compared.
VOLATILE = ("text/html", "image/svg+xml")


def pytest_collectstart(collector: Any) -> None:
    """Tell nbval's collector of a notebook what not to compare."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += VOLATILE
