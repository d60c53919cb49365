"""Messages from the core into the files of a log, and the care of these files."""
