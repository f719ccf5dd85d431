"""Analyse some ranks with HolisticTraceAnalysis, in an environment that has it; print its figures as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Print, for each rank, idle, compute and other GPU time in ns, and the overlap of communication with compute."""
    from hta.trace_analysis import TraceAnalysis

    files = {int(Path(path).name[5:10]): path for path in sys.argv[1:]}
    analysis = TraceAnalysis(trace_files=files, trace_dir="/", include_last_profiler_step=True)
    times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    figures = {
        int(rank): {
            "idle_ns": 1000 * float(row["idle_time(us)"]),
            "compute_ns": 1000 * float(row["compute_time(us)"]),
            "other_ns": 1000 * float(row["non_compute_time(us)"]),
            "overlap_frac": float(overlap.loc[rank].iloc[0]) / 100,
        }
        for rank, row in times.iterrows()
    }
    print("\n" + json.dumps({"ranks": figures, "stragglers": [*map(int, analysis.get_potential_stragglers())]}))


if __name__ == "__main__":
    main()
