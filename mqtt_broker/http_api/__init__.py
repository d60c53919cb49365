"""The broker's HTTP server: health, metrics, the API, and the log for readers on other machines.

The server has a thread and an asyncio loop of its own. It uses the broker through
`BrokerInterface` alone, whose methods answer with a future: a snapshot of its state, or a change
that was asked for. Nothing here knows a connection or a session or decides anything about MQTT,
and the broker never waits for it.

    http_server               the thread, the loop, the socket, the limits
    service                   the HTTP server of a broker that the command runs
    server_interface snapshot `BrokerInterface` of a running server
    address_file              http.json: tells tools on this machine where the server is
    request/                  what all requests pass: token, errors, bodies; `BrokerInterface`
    v1/                       /api/v1/...: streams and bans, JSON in and out
    log/                      /streams/...: whole batches as they lie in the files, by sendfile
    pages/                    /healthz, /metrics

aiohttp is imported by that thread, after the socket is bound: the broker starts without it.
"""
