"""Messages on their way to receivers: bytes, outboxes, limits, counters. Knows no session."""
