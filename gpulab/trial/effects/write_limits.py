"""Lets the kernel refuse changes of files, for this process and all that it starts: also those of compiled code.

Linux has Landlock for this since version 5.13; no privileges are needed. https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, the same on these machines
_MACHINES = ("x86_64", "aarch64")
_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
_WRITE_FILE, _REMOVE, _MAKE, _REFER, _TRUNCATE = 1 << 1, 0b11 << 4, 0b1111111 << 6, 1 << 13, 1 << 14
_OF_FILES = _WRITE_FILE | _TRUNCATE  # what a rule for a file may allow


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def allow_writes_only_in(folders: Iterable[Path]) -> bool:
    """Refuse changes outside these folders from now on, for good; return whether the system can.

    It counts for this thread and those that it starts. A file may be one of the folders; missing ones are left out.
    """
    if not sys.platform.startswith("linux") or platform.machine() not in _MACHINES:
        return False
    library = ctypes.CDLL(None, use_errno=True)
    version = library.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return False
    handled = _WRITE_FILE | _REMOVE | _MAKE | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    ruleset = _Ruleset(handled)
    descriptor = library.syscall(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(ctypes.sizeof(ruleset)), 0)
    if descriptor < 0:
        return False
    try:
        for folder in folders:
            _allow(library, descriptor, folder, handled)
        is_without_privileges = library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
        return is_without_privileges and bool(library.syscall(_RESTRICT_SELF, descriptor, 0) == 0)
    finally:
        os.close(descriptor)


def _allow(library: ctypes.CDLL, ruleset: int, folder: Path, access: int) -> None:
    try:
        descriptor = os.open(folder, os.O_PATH)
    except OSError:  # missing
        return
    try:
        rule = _Beneath(access if folder.is_dir() else access & _OF_FILES, descriptor)
        library.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)
