"""The diagnosis drills of lesson 20."""
