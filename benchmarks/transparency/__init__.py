"""How a program behaves under a launcher, compared with plain Python."""
