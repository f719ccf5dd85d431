"""Charts of steps: ledger, step times, predictions, a series of runs."""
