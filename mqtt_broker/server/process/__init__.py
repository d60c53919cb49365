"""The process: reload on SIGHUP, systemd, watchdog, allocator."""
