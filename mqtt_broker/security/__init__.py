"""Authenticate clients, authorize what they do, and protect the broker from them.

    authenticator    the core's `Access`, made of all that follows; `SecurityPolicy`
    sql              accounts and rules in SQL tables
    authentication/  the methods (passwords, SCRAM, tokens, certificates), and their chain
    rules/           what an identity may publish, subscribe and use
    protection/      bans, connection limits, the audit log
    files/           files that are replaced whole

No socket and no event loop belongs here. Work that may wait (hashing, SQL) is done by the workers
that the caller gives to the chain. No secret appears in a log line, a repr or an error.
"""
