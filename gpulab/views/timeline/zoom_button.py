"""A button that turns the step picture of a report into the interactive timeline, while the kernel is running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from gpulab.views.sheet.sheet import Block, Section, Sheet, Timeline

if TYPE_CHECKING:
    from gpulab.views.timeline.scene.scene import Scene


def with_timeline_button(sheet: Sheet, build: Callable[[], Scene]) -> Sheet:
    """Return the sheet with a timeline button at its first picture; unchanged if widgets are not available.

    The timeline is computed when the button is pressed: most reports are only read.
    """
    key = uuid4().hex
    blocks = _with_key(sheet.blocks, key)
    if blocks == sheet.blocks:
        return sheet
    try:
        from gpulab.views.timeline.widget import TimelineModel
    except ImportError:
        return sheet
    TimelineModel(build, key, offered=True)  # ipywidgets keeps a reference to it
    return replace(sheet, blocks=blocks)


def _with_key(blocks: tuple[Block, ...], key: str) -> tuple[Block, ...]:
    """Give the first picture a key, searching sections recursively."""
    for index, block in enumerate(blocks):
        if isinstance(block, Timeline):
            return (*blocks[:index], replace(block, element_key=key), *blocks[index + 1 :])
        if isinstance(block, Section) and (section_blocks := _with_key(block.blocks, key)) != block.blocks:
            return (*blocks[:index], replace(block, blocks=section_blocks), *blocks[index + 1 :])
    return blocks
