"""One request: who may ask, its body, and the interface to the broker."""
