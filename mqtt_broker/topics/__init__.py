"""Topic names and filters: what matches what, and what is retained where.

Rules of this room: pure data structures over strings and opaque values; no packets, no
sessions, no clock.
"""
