"""The log of another machine, read over HTTP. The only sockets of `streams`."""
