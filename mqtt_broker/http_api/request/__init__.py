"""Code that all requests share: middleware, bodies, open streams, the interface to the broker."""
