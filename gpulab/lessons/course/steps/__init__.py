"""Lessons on the whole loop: a first diagnosis, a case study, and drills."""
