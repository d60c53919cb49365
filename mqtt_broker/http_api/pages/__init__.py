"""Pages for operators: health and metrics."""
