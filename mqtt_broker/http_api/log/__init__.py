"""`/streams`: the log for readers on other machines; `streams.remote` is the client."""
