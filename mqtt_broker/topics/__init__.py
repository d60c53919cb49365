"""Topic Names and Topic Filters: grammar, matching, retained tree, share strategies.

Pure data structures over strings and opaque values: no packets, no sessions, no clock.
"""
