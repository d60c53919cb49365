"""The `fleetmq` command: one module for each subcommand.

Rules of this package: a subcommand has `add_arguments(parser)` and `run(args) -> int`, and `main`
imports only the one that is called, so that `fleetmq pub` starts fast. Exit codes: 0 done, 1 ran
and failed, 2 wrong usage or configuration; an error is one line on stderr. Only this package
prints.
"""
