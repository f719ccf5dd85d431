"""Times of parts of a training step, measured again after the recorded code has ended: in other formats, and joined."""
