"""Sockets and the event loop: poller, links, listeners, TLS, WebSocket, PROXY protocol.

    poller event_loop    which sockets are ready, and the turns in which they are served
    listener             accept connections; `handshake_queue` takes them up to CONNECT
    link layered_link    a client's socket, without or with layers between it and MQTT
    tls websocket proxy_protocol    the layers: bytes in, bytes out, no socket
    context              the state that all of them share

A link hands bytes to `core.dispatch` and writes what the core's outboxes give it. Nothing here
reads a configuration file or decides about MQTT.
"""
