"""The loops, one file each, in folders by family."""
