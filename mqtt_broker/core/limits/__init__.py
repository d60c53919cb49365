"""How much a client may do: settings, limits and token buckets."""
