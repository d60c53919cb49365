"""Reports of a run (JSON, HTML, text), and its progress on a terminal."""
