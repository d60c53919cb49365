"""Write messages of the core into the files of a log, and take care of these files."""
