"""Files of a log to batches of records."""
