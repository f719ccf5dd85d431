"""Phases that one callback of a framework begins and another one ends."""

from __future__ import annotations

from gpulab.capture.active_session import PhaseBlock, phase


class OpenPhases:
    """The phases that are open, innermost last. An exception may skip the end of a phase: an outer one then ends it."""

    def __init__(self) -> None:
        self._open: list[tuple[str, PhaseBlock]] = []

    def begin(self, name: str) -> None:
        """Begin a phase."""
        opened = phase(name)
        opened.__enter__()
        self._open.append((name, opened))

    def end(self, name: str) -> None:
        """End the latest phase of this name, and those within it; does nothing if none is open."""
        if name in [opened for opened, _ in self._open]:
            while self._pop() != name:
                pass

    def end_all(self) -> None:
        """End every phase."""
        while self._open:
            self._pop()

    def _pop(self) -> str:
        name, opened = self._open.pop()
        opened.__exit__(None, None, None)
        return name
