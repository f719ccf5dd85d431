"""What a report says instead of a diagnosis: checks that could not run, a cell without PyTorch, a monitor's figures."""
