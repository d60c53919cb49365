"""Send records of streams to the MQTT clients that subscribe to them.

    service         subscriptions to streams: the core's `StreamSubscriptions`
    subscription    one client's, at its own pace; `consumer_group` shares partitions among members
    pages           read in a thread, encode for a client; `read_ahead` bounds the memory
    start_positions notices dead_letters    where reading starts, and messages about trouble

The event loop runs all of it but the reading, which `read(work, done)` of the service gives to a
thread. Time comes in as `now`.
"""
