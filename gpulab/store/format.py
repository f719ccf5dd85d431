"""Which parts a `.gpulab` file has, and how a file that is none is refused."""

from __future__ import annotations

from gpulab.errors import StoreError
from gpulab.rows import Table

MAJOR, MINOR = 1, 0
Schema = tuple[int, int]

SUFFIX = ".gpulab"
META = "run.json"
META_BYTES = 16 * 2**20  # at most; what a run says of itself takes a few kB
FILE_BYTES = 2**31 - 1  # at most: what a zip without extensions holds, some 300 million events

_LONGEST = 300  # letters of a reason

WHOLE = "is it whole? copy it again, or record the run anew"
TRUST = "open only files that you trust"
UPGRADE = "pip install --upgrade gpulab"


def part(table: Table) -> str:
    """The name of the part that holds a table."""
    return f"{table.name}.parquet"


def refusal(why: str, fix: str = WHOLE) -> StoreError:
    """A file that is no run, whichever it is; who opened it puts its name to it."""
    short = why if len(why) <= _LONGEST else f"{why[:_LONGEST]} ..."  # it may quote the file
    return StoreError("The file cannot be read as a run.", why=short, fix=fix)
