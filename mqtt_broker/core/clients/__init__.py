"""State of a client: connection, handshake, authorization, acknowledgements, session end, will."""
