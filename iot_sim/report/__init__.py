"""Reports of a run, and its progress on a terminal."""
