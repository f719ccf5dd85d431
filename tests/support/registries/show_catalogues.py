"""Uses the made-up chart, rule and rewrite of the gpulab on sys.path wherever such things appear; prints JSON."""

from __future__ import annotations

import json
import sys

import gpulab
from gpulab import charts
from gpulab.magics.completion import next_words
from gpulab.views.rule_page import page
from tests.support.runs.simulated_machine import Call, run_like


def main() -> None:
    run = run_like([Call(loads_us=900.0), *[Call(host_us=20.0, kernel_us=40.0)] * 30, Call(waits=True)], steps=10)
    chart = charts.made_chart(run)
    catalogues = {
        "chart": [chart.headline, "made_chart" in dir(charts)],
        "rule": [finding.claim for finding in gpulab.diagnose(run).findings if finding.rule == "made_rule"],
        "rule page": str(page("made_rule")),
        "rewrite": str(gpulab.whatif(run, "made_rewrite")),
        "rewrite page": str(page("made_rewrite")),
        "ranking": str(gpulab.whatif(run)),
        "contents": str(page()),
        "completions": [next_words("gpuwhy", []), next_words("gpuwhatif", ["last"])],
    }
    json.dump(catalogues, sys.stdout)


if __name__ == "__main__":
    main()
