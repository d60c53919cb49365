"""Tests of FleetMQ. A regular package, since some libraries install a package `tests` of theirs."""
