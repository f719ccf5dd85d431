"""The compiled parser of chunks; its source is in gpulab/trace/parser."""

FIELDS: tuple[str, ...]
SCOPES: tuple[str, ...]

def parse(
    buffer: bytes | bytearray,
    begin: int,
    end: int,
    columns: bytearray,
    keys: bytes,
    is_exact: bool,
    has_bracket: bool,
    /,
) -> tuple[int, int, list[bytes], int] | bool | None:
    """Parse the events in a part of the buffer into columns; see chunk_parser.c."""
