"""Backups of a broker: take one while it runs, verify it, restore it into an empty place.

A backup is a directory with a `manifest`. It is written under a name that ends in `.part`, and gets
its own name when every file in it is on disk; so a directory without that ending is whole.
"""
