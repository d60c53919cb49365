"""What a job and a sink are."""
