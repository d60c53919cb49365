"""One client of the broker: its connection, its acknowledgements, its will."""
