"""Read the files of a log as batches of records."""
