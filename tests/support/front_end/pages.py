"""Pages of Chromium on which reports are checked: narrow and wide, light and dark."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.tiers import tiered_product

WIDTHS = (480, 1100)
SCHEMES = ("light", "dark")


def on_pages(reports: Sequence[str]) -> pytest.MarkDecorator:
    """Parametrize the fixtures `any_page` and `told`; the first tier has each pair of width, scheme and report."""
    return pytest.mark.parametrize(
        ("any_page", "told"),
        [
            pytest.param((width, scheme), report, marks=marks, id=f"{scheme}-{width}-{report}")
            for (width, scheme, report), marks in (
                (case.values, case.marks) for case in tiered_product(WIDTHS, SCHEMES, reports)
            )
        ],
        indirect=True,
    )
