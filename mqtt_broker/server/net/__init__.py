"""Sockets and the event loop: poller, links, listeners, TLS, WebSocket."""
