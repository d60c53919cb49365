"""Bans, limits of connection attempts, and the audit log."""
