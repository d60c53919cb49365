"""Changes of durable state as records, and actions that wait for their commit. No SQL."""
