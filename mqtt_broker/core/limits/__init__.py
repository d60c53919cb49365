"""Limits of what clients may do: settings, limits and token buckets. Enforced in other packages."""
