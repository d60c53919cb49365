"""Pages for operators: `/healthz`, `/readyz` and `/metrics`."""
