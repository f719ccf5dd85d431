"""What-if: the same step with something changed, as a range and a bound.

stops, waits, build   from a run to its graph
graph, sweep          the graph, and when everything in it begins and ends
quality, calibration  whether to trust it; from the recorded step to the real one
rewrite, rewrites/    one change and all that are known
prediction, history   a range for changes made together, and what earlier ones taught
"""
