"""Runs on disk: one `.gpulab` file, a zip of `run.json` and one Parquet file per table that has rows.

Any tool that reads Parquet can read the tables. Nothing in the file is executed or trusted: sizes are checked before
they are used, and run.json has the SHA-256 of each table. A minor schema version only adds things: a file with a newer
one opens, with a gap that lists the ignored parts, and missing parts are absent. A newer major version is rejected with
the advice to upgrade.

    format       the parts of a file, and the error for invalid files
    writing      save, atomically
    packing      a table -> Parquet
    reading      open, is_run
    archive      the zip file, checked before it is read
    footer       sizes in a Parquet file, checked before it is read
    thrift       the encoding of these sizes
    unpacking    Parquet -> the columns of a table
    document     run.json, both ways
    newer        parts of newer schema versions
    consistency  conditions between the parts of a run
"""

from gpulab.store.format import MAJOR, MINOR, SUFFIX
from gpulab.store.reading import is_run, open
from gpulab.store.writing import save

__all__ = ["MAJOR", "MINOR", "SUFFIX", "is_run", "open", "save"]
