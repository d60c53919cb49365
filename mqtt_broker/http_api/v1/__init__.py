"""`/api/v1`: streams and bans as JSON."""
