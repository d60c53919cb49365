"""A whole run, in one process or several: from the scenario to its outcome."""
