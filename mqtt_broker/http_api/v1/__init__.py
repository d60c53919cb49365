"""`/api/v1`: streams, consumer groups and bans as JSON, a module for each resource."""
