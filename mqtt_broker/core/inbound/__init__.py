"""What each packet from a client means."""
