"""Labs about several ranks: collectives on real gloo ranks, their cost, stragglers, and ways to split a model."""
