"""The code that jobs share: columns of telemetry, pure machines, lateness."""
