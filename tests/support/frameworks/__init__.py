"""Small trainings with real frameworks, for the tests of callbacks."""
