"""What keeps a recording from harming the program that it records."""
