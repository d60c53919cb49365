"""Prove the identity of a client: the chain of methods, and each method.

    chain           ask the methods in the order of the configuration
    accounts password_file password_hasher scram    passwords
    jwt             tokens
    certificates    TLS client certificates
    fair_queue      serve waiting clients address by address

A method knows the CONNECT and its own file or accounts. It never decides about topics.
"""
