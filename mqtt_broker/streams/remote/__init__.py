"""Read the log of another machine over HTTP, with the interface of `streams.read`.

The only sockets of `streams`. The server's side is `http_api.log`.
"""
