"""A report's picture of a few steps, with an offer to zoom into it for as long as the kernel lives."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from gpulab.rules import Diagnosis
from gpulab.views.sheet.sheet import Block, Section, Sheet, Timeline


def offered(sheet: Sheet, diagnosis: Diagnosis) -> Sheet:
    """The sheet, its first picture a place that a button turns into the timeline; as it is where widgets are missing.

    Nothing is worked out before that button is pressed: most reports are read, few are searched.
    """
    from gpulab.views.timeline.scene.scene import scene

    key = uuid4().hex
    blocks = _with_place(sheet.blocks, key)
    if blocks == sheet.blocks:
        return sheet
    try:
        from gpulab.views.timeline.widget import TimelineModel
    except ImportError:
        return sheet
    TimelineModel(lambda: scene(diagnosis), key, offered=True)  # ipywidgets keeps it while the kernel lives
    return replace(sheet, blocks=blocks)


def _with_place(blocks: tuple[Block, ...], key: str) -> tuple[Block, ...]:
    """The first picture among the headings and what is under them, given a name."""
    for index, block in enumerate(blocks):
        if isinstance(block, Timeline):
            return (*blocks[:index], replace(block, place=key), *blocks[index + 1 :])
        if isinstance(block, Section) and (inside := _with_place(block.blocks, key)) != block.blocks:
            return (*blocks[:index], replace(block, blocks=inside), *blocks[index + 1 :])
    return blocks
