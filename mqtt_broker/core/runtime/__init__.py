"""The base that the core runs on: timers, counters, outboxes, back-pressure."""
