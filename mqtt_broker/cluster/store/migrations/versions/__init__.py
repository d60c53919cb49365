"""The migrations, one numbered module each."""
