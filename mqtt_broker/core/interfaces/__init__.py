"""Interfaces of the core that other packages implement. Never compiled."""
