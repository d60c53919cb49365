"""One client: its connection, handshake, authorization, acknowledgements, session end and will."""
