"""Small files of the user that persist between sessions: measured predictions, course progress, self-test results."""
