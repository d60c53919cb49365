"""Session State: what the broker keeps for a client beyond a connection.

    session   identity, subscriptions, expiry and will
    outbound  delivery to the client: window, queue, resend list, sources
    queue     the messages that wait, in memory and in the store
    registry  the sessions by client id

Everything except `store` is pure: no clock, socket, file or task; time is the argument `now`. The
package uses the codec and the QoS state machines, and knows nothing of the core that drives it.
"""
