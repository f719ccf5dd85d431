"""The live panel of a running session, and the background monitor that shows it without a profiled cell."""
