"""What a device that stands in for CUDA does in either way, played or counted: it is left, and says what it assumed."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.op_log.ops import Assumption


class Standing:
    """One GPU that is not there, for one `with`; how it is entered is its own."""

    def __init__(self) -> None:
        self._assumptions = Assumptions()
        self._stack: ExitStack | None = None

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What was taken in place of values that nobody knows, in order of first use."""
        return self._assumptions.told()

    def assume(self, what: str, taken: str) -> None:
        """Note an assumption that another part of the virtual GPU makes."""
        self._assumptions.take(what, taken)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
