"""Patterns of weeks: what repeats, what changed, and what nobody uses, each with its evidence.

frame         the minutes of all devices and jobs, loaded once
pattern       one pattern as a value
idle_hours    hours of the day and days of the week in which GPUs are held and idle; forgotten and unused GPUs
job_patterns  regular dips, idle GPUs of a job, jobs that end with full memory again and again
machine_patterns   clocks that fell, heat, errors
catalogue     all of them
"""
