"""Read the log of another machine over HTTP: the only sockets of `streams`."""
