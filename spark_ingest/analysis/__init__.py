"""What the jobs share: columns of telemetry, pure machines, lateness."""
