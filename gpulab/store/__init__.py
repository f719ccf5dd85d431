"""Runs on disk: one `.gpulab` file, a zip of `run.json` and one part per table that has rows.

A table is a description of its columns in JSON and the numbers of each column, packed and compressed; numpy and zlib
read it. Nothing in the file is executed or trusted: sizes are checked before they are used, and run.json has the
SHA-256 of each table. A minor schema version only adds things: a file with a newer one opens, with a gap that lists the
ignored parts, and missing parts are absent. A newer major version is rejected with the advice to upgrade. Tables of
schema 1 were Parquet files: they open if pyarrow is installed.

    format            the parts of a file, and the error for invalid files
    writing           save, atomically
    table_encoding    a table -> bytes
    reading           open, is_run
    archive           the zip file, checked before it is read
    table_decoding    bytes -> a table
    packed_arrays     arrays of integers, both ways
    column_entries    the description of a table
    parquet           tables of schema 1
    missing_columns   columns that older files lack
    memory_allowance  limits of the memory that a run takes
    document          run.json, both ways
    newer_schema      parts of newer schema versions
    consistency       conditions between the parts of a run
    replaced_file     a file that is replaced atomically
"""

from gpulab.store.format import MAJOR, MINOR, SUFFIX
from gpulab.store.reading import is_run, open
from gpulab.store.writing import save

__all__ = ["MAJOR", "MINOR", "SUFFIX", "is_run", "open", "save"]
