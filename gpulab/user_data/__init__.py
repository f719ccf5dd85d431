"""Small files kept for the user between sessions: measured predictions, course progress, self-test results."""
