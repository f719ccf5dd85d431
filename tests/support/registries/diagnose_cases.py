"""Diagnoses the cases of a file with the gpulab on sys.path; prints JSON: which rules fire, and the new rule's page."""

from __future__ import annotations

import json
import runpy
import sys

import gpulab
from gpulab.views.rule_page import page


def main(path: str) -> None:
    functions = {name: one for name, one in runpy.run_path(path).items() if name.startswith(("provoked_", "spared_"))}
    findings = {name: [one.rule for one in gpulab.diagnose(make()).findings] for name, make in functions.items()}
    json.dump({"findings": findings, "page": str(page("zero_fills"))}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
