"""Parts of a `.gpulab` file, and the error for invalid files."""

from __future__ import annotations

from gpulab.errors import StoreError
from gpulab.rows import Table

# 1.1: the table of phases; 2.0: tables are packed columns, which need no library, and were Parquet before;
# 2.1: host_samples.library_path
MAJOR, MINOR = 2, 1
Schema = tuple[int, int]

SUFFIX = ".gpulab"
METADATA_PART = "run.json"
MAX_METADATA_BYTES = 16 * 2**20  # upper limit; the metadata of a run takes a few kB
MAX_FILE_BYTES = 2**31 - 1  # upper limit of a zip file without extensions; some 300 million events

_MAX_REASON_LENGTH = 300  # characters

COPY_AGAIN = "the file may be incomplete: copy it again, or record the run again"
TRUSTED_FILES_ONLY = "open only files that you trust"
UPGRADE = "pip install --upgrade gpulab"


def part_name(table: Table, schema: Schema = (MAJOR, MINOR)) -> str:
    """Name of the part with this table in files of this schema version."""
    return f"{table.name}.{table_suffix(schema)}"


def table_suffix(schema: Schema) -> str:
    """The end of the names of parts with tables."""
    return "parquet" if is_parquet(schema) else "columns"


def is_parquet(schema: Schema) -> bool:
    """Whether the tables of files of this schema version are Parquet."""
    return schema < (2, 0)


def invalid_run_error(why: str, fix: str = COPY_AGAIN) -> StoreError:
    """The error for a file that is not a valid run; the caller adds the file name."""
    short = why if len(why) <= _MAX_REASON_LENGTH else f"{why[:_MAX_REASON_LENGTH]} ..."  # it may quote the file
    return StoreError("The file cannot be read as a run.", why=short, fix=fix)
