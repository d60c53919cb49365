"""The migrations, a numbered module each."""
