"""Payloads to typed columns."""
