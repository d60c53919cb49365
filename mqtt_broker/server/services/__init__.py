"""Store, streams and security wired to threads, files and the event loop."""
