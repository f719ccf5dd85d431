"""Labs about complete training steps: throughput, a checklist, a sequence of optimisations."""
