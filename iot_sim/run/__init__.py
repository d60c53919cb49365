"""A whole run, in one process or several."""
