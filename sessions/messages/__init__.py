"""Messages on their way to receivers: bytes, outboxes, limits, counters.

The package knows no session.
"""
