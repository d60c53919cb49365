"""Authorization: rules, the identities they apply to, and limits of clients by user.

Pure: no file, no clock. `rule_parser` makes rules of words from a file or a table, `ruleset`
decides. Who a client is has been proven before, by `security.authentication`.
"""
