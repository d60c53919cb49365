"""Changes of durable state as records, and what waits for their commit. No SQL."""
