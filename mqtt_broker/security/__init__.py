"""Who may come in, what they may do, and what they may not do to others.

    filters, rules, ruleset   what topic rules mean; pure
    identity                  who a client proved to be
    passwords, password_file, tokens, certificates, scram, sql   ways to prove it
    chain                     they are asked in order; the first that knows the client decides
    throttle, bans, queueing  limits, bans, and who is served first; pure
    door                      all of that behind the core's access door
    audit                     what happened, as lines of JSON

No socket and no event loop lives here. What is slow (hashing, SQL) says so, and whoever wires
the door (`server.security`) runs it in threads. No secret is in a log line, a repr or an error.
"""
