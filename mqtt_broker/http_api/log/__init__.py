"""`/streams`: the log for readers on other machines."""
