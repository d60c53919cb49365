"""What the embedder lends to the core: timers."""
