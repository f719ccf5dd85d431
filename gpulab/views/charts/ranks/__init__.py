"""Charts of the ranks of a distributed job."""
