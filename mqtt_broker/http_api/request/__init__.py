"""What all requests pass: checks, bodies, and the interface to the broker."""
