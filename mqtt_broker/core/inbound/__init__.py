"""Act on each packet from a client."""
