"""Labs about whole steps: throughput, a checklist, one optimisation after another."""
