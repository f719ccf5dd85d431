"""The results of a visit as one page, and the folder as one archive."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_visit.catalogue import Stage
from benchmarks.gpu_visit.runner import result_file
from benchmarks.gpu_visit.visit import read_json

SUMMARY = "summary.md"
MAX_ARCHIVE_BYTES = 15_000_000


def write_summary(stages: Sequence[Stage], folder: Path) -> str:
    """Write summary.md and return its text."""
    records = {stage.name: read_json(result_file(folder, stage.name)) for stage in stages}
    lines = ["# A visit to a GPU", "", *_about(records.get("environment")), ""]
    lines += _table(("stage", "status", "seconds", "result"), [_row(name, record) for name, record in records.items()])
    for name, record in records.items():
        lines += _details(name, record) if record else []
    text = "\n".join(lines) + "\n"
    (folder / SUMMARY).write_text(text, encoding="utf-8")
    return text


def write_archive(folder: Path, archive: Path) -> None:
    """Pack the folder into a zip file, which replaces an older one once it is complete.

    Runs come last, the smallest first, as long as the archive stays small; `omitted.txt` in it lists the others.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    temporary = archive.with_name(f"{archive.name}.part")
    archives = (archive.resolve(), temporary.resolve())
    paths = [path for path in folder.rglob("*") if path.is_file() and path.resolve() not in archives]
    omitted, total = [], 0
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(paths, key=lambda path: (path.suffix == ".gpulab", path.stat().st_size, path)):
            size = path.stat().st_size
            if path.suffix == ".gpulab" and total + size > MAX_ARCHIVE_BYTES:
                omitted.append(f"{path.relative_to(folder)}: {size:,} bytes")
                continue
            packed.write(path, path.relative_to(folder))
            total = temporary.stat().st_size
        if omitted:
            packed.writestr("omitted.txt", "\n".join(omitted) + "\n")
    temporary.replace(archive)


def _about(record: dict[str, Any] | None) -> Iterator[str]:
    figures = (record or {}).get("figures") or {}
    if not figures:
        yield "The environment was not recorded."
        return
    gpus = ", ".join(gpu["name"] for gpu in figures["machine"]["gpus"]) or "no GPU"
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items() if version)
    driver, began = figures["machine"]["driver"] or "unknown", record["began"] if record else ""
    yield f"{gpus}; driver {driver}; {versions}; {began}."
    if record and record["dry_run"]:
        yield "\nA dry run on the CPU with tiny sizes: it shows that the stages run, and nothing about a GPU."


def _row(name: str, record: dict[str, Any] | None) -> tuple[str, str, str, str]:
    if record is None:
        return name, "not run", "", ""
    result = "; ".join(filter(None, (record["headline"], record["reason"])))
    return name, record["status"], f"{record['seconds']:.0f}", result


def _details(name: str, record: dict[str, Any]) -> Iterator[str]:
    open_checks = [check for check in record.get("checks", []) if check["holds"] is not True]
    if not open_checks and not record.get("rows") and not record.get("last_lines"):
        return
    yield from ("", f"## {name}", "")
    unjudged: dict[str, list[str]] = {}
    for check in open_checks:
        if check["holds"] is None:
            unjudged.setdefault(check["detail"], []).append(check["name"])
        else:
            yield f"- FAILS: {check['name']}{_in_brackets(check['detail'])}"
    for detail, names in unjudged.items():
        yield f"- not judged{_in_brackets(detail)}: {'; '.join(names)}"
    if record.get("rows"):
        yield from ("", *_table(record["head"], record["rows"]))
    if record.get("last_lines"):
        yield from ("", "```", *(line[:300].replace("```", "'''") for line in record["last_lines"]), "```")


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', '/').replace(chr(10), ' ') for cell in row)} |"
