"""What a command of the shell prints."""

from __future__ import annotations

from typing import NamedTuple


class Output(NamedTuple):
    """What a command prints, and its exit status."""

    text: str
    status: int = 0
