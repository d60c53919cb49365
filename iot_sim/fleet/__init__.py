"""The MQTT clients of a simulated fleet, and the sockets and timers they share.

    engine          sockets and timers in one thread
    client outbound encoding    an MQTT client, and what it publishes
    device_runner observers     clients with a device behind them, and those that keep the ledger
    fault_injection connection_ends    break connections on purpose, and note how each ended

The clients are the simulator's own: they test the broker, so they share no client with it.
"""
