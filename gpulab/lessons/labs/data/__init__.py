"""Labs about data loading."""
