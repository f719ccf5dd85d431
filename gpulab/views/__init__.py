"""Views: each function takes values and returns something displayable; none shows anything itself."""
