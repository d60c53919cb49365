"""The bus: frames from node to node over NATS, which is trusted with nothing.

The protocol of NATS is a few words of text, and is spoken here on the broker's own poller: a frame
is taken in the turn in which it comes, and leaves when the turn ends. Nothing waits for NATS: what
cannot be sent is dropped and counted, and crosses by the database, or not at all.

    interface      what the rest of a node sees of a bus
    settings       servers, credentials and TLS
    nkeys          credentials that are keys
    nats_protocol  bytes to messages, without a socket
    tls_stream     TLS over memory
    nats_link      one connection
    notices        lines for the log, each once
    nats_bus       connects again and again, subscribes, sends, receives
"""
