"""Store, streams and security of a running broker: objects, threads and files, wired together.

A service builds its part from the configuration, attaches it to the core, starts its threads and
ends them. The work itself is done by `sessions.store`, `streams` and `security`.
"""
