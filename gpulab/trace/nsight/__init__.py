"""Read SQLite exports of NVIDIA Nsight Systems (`nsys export --type sqlite`), of any version since 2020."""

from gpulab.trace.nsight.database import REPORT_SUFFIXES, is_database, is_nsys_export, is_report, report_error
from gpulab.trace.nsight.reading import read_export

__all__ = ["REPORT_SUFFIXES", "is_database", "is_nsys_export", "is_report", "read_export", "report_error"]
