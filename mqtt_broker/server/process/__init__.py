"""The process around the broker: turns, reload on SIGHUP, systemd, heartbeat, watchdog, allocator.

No sockets of clients and no configuration. `turn` ends each turn of the event loop; the other
modules watch over the process, or talk to the operating system for it.
"""
