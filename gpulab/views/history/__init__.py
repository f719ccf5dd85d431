"""The history of GPUs as a view: what `gpulab watch` recorded over days and weeks.

history_view    the view, and its headline
heat_map        use by day and hour, by GPU and day
usage_tables    GPU-hours, energy and cost by GPU, user and program
device_log      gaps and events
"""
