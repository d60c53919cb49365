"""The `fleetmq` command: a module a subcommand.

Rules of this room: a subcommand has `add_arguments(parser)` and `run(args) -> int`, and
`main` imports it only when it is called, so that `fleetmq pub` starts fast. Exit codes: 0
done, 1 ran and failed, 2 wrong usage or configuration; what went wrong is one line on
stderr. Here, and nowhere else, the product prints.
"""
