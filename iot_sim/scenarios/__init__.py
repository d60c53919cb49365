"""Scenarios: what a run does, and the files that say so."""
