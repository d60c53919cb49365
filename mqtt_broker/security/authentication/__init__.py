"""Prove who a client is: the chain of methods, and each method."""
