"""Multiple-choice questions of the course as buttons."""
