"""Bytes, names and rules of a log. Opens no file but through `disk`."""
