"""What-if: predict the step time after a change, as a range and an upper bound.

graph/         the graph of a run: host calls, device work, dependencies; and its calibration
sweep          start and end of everything in a graph; batched_sweep does it for many graphs at once
quality        does the replay reproduce the recording? If not, refuse
rewrite        Rewrite: one change to a graph; Draw: one choice of all unknowns
rewrites/      all known changes, one file per topic; catalogue lists them
removal        a change that removes the work inside given spans
parsing        "workers=6, pin_memory" to rewrites
prediction     the range and bound for several changes together
history        errors of earlier predictions on this machine
predicted_run  the predicted step as a run that every view can show
critical_path  the spans that determine the length of a step
worker_queue   queue model of DataLoader workers
"""
