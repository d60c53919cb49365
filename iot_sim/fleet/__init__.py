"""The MQTT clients of a simulated fleet, and the sockets and timers they share.

    engine                      sockets and timers in one thread
    client, outbound, encoding  an MQTT client, and what it publishes
    device_runner, observers    clients of devices, and clients that feed the ledger
    fault_injection             break or delay connections on purpose
    connection_ends             what each end of a connection means for its will

The clients are the simulator's own, so that a fault in FleetMQ's client cannot hide one in its
broker.
"""
