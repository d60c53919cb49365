"""Send records of streams to the MQTT clients that subscribe to them.

    service         subscriptions to streams: the core's `StreamSubscriptions`
    subscription    one client's, at its own pace; `consumer_group` shares partitions among members
    pages           read in a thread, encode for a client; `read_ahead` bounds the memory
    start_positions notices dead_letters    where reading starts, and messages about trouble

Everything runs on the event loop except reading, which `read(work, done)` of the service passes to
a thread. Callers pass the time as `now`.
"""
