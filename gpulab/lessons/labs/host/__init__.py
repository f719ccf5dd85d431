"""Labs about launches and operators."""
