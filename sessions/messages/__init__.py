"""One message on its way to its receivers. Knows no session."""
