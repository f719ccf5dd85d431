"""%gpuwhatif: predictions, the critical path of a step, and a step before and after."""
