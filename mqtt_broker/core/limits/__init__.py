"""How much a client may do: settings, and what measures and bounds it."""
