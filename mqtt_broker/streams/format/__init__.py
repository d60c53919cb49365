"""Bytes, names and rules of a log. Files are opened only through `disk`."""
