"""Configuration: files, environment and options, read into plain data."""
