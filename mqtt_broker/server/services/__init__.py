"""Store, streams and security of a running broker: objects, threads and files, wired together.

A service builds its part from the configuration, attaches it to the core, and starts and stops its
threads. The work itself is done by `sessions.store`, `streams` and `security`.
"""
