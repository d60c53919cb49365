"""The broker's HTTP server: health, metrics, the API, and the log for readers elsewhere.

Rules of this room: it has a thread and an asyncio loop of its own, and touches the broker by
the two doors of `doors` alone: it asks for a snapshot, and it asks for something to be done.
Both answer with a future. Nothing here knows a connection or a session, decides anything about
MQTT, or is waited for by whoever does.

    doors figures     what is asked of the broker; how a broker's core answers
    commands front    how a running server answers; where it listens, as the command runs it
    server            the thread, the loop, the socket, the limits
    pages             what every answer goes through: token, errors, headers
    health metrics    /healthz, /metrics
    api bodies        /api/v1/...: JSON in, JSON out
    ranges shelf      /streams/...: whole batches as they lie in the files, by sendfile
    address           http.json: where tools on this machine find the server

aiohttp is imported by that thread, after the socket is bound: the broker starts without it.
"""
