"""How much memory a run may take while it is read."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.store.format import TRUSTED_FILES_ONLY, invalid_run_error

STRING_BYTES = 64  # memory of a Python string beyond its text


@dataclass
class MemoryAllowance:
    """Memory that a run may still take: sizes in a file are subtracted before any memory is allocated."""

    bytes: int

    def reserve(self, size: int, name: str) -> None:
        """Subtract a size. Raises StoreError if not enough is left."""
        self.bytes -= size
        if self.bytes < 0:
            raise invalid_run_error(f"its {name} would take more memory than a run of its size can", TRUSTED_FILES_ONLY)
