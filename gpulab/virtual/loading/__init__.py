"""DataLoaders, which run for real: what each batch takes to build, and when it is there on virtual time."""
