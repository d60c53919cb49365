"""Protect the broker: bans, limits of connection attempts, and the audit log.

All three know addresses, client ids and user names, and no passwords and no rules.
"""
