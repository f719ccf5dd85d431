"""What is known of the recorded traces: their labels in the benchmark, and why."""

from __future__ import annotations

# Trace -> the rules that may come first, best known first. Each from what its source says of it, or from reading the
# trace by hand; where several causes of about one size stand side by side, each of them is right.
TRACES: dict[str, tuple[str, ...]] = {
    "v100_resnet50_workers0": ("starving",),  # by its source: num_workers=0; 33.6 % of a step waits for data
}
