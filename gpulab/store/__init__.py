"""A run on disk, out and in: one `.gpulab` file, a zip of `run.json` and one Parquet file per table that has rows.

Any tool that reads Parquet can read the tables. Nothing in the file is code, and nothing is trusted: sizes are checked
before they are believed, and each table has its SHA-256 in run.json. A minor schema only adds: a file of a newer one
opens, with a note of what was passed over, and what an older one lacks is absent. A newer major schema is refused with
the advice to upgrade.

    form         which parts a file has, what a refusal says
    writing      save, whole or not at all
    packing      a table -> Parquet
    reading      open, is_run
    archive      the zip, not trusted
    footer       what a Parquet file says of its sizes, not trusted
    thrift       the notation it says it in
    unpacking    Parquet -> the columns of a table
    document     run.json, both ways
    newer        what newer schemas have beyond this one
    consistency  what must hold between the parts of a run
"""

from gpulab.store.format import MAJOR, MINOR, SUFFIX
from gpulab.store.reading import is_run, open
from gpulab.store.writing import save

__all__ = ["MAJOR", "MINOR", "SUFFIX", "is_run", "open", "save"]
