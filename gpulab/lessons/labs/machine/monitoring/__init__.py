"""What lesson 17 watches: one run in several tools, timelines, a week of readings, metrics of containers."""
