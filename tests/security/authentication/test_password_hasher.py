"""Hashing passwords: what unknown users cost, and what is remembered."""

from __future__ import annotations

from mqtt_broker.security.authentication.password_hasher import Passwords, hash_password
from tests.security.gate import HASHES


def test_unknown_users_cost_what_known_ones_do() -> None:
    from argon2 import PasswordHasher, extract_parameters

    dear = PasswordHasher(time_cost=3, memory_cost=512, parallelism=1)
    passwords = Passwords()
    passwords.learn_cost([dear.hash("a"), dear.hash("b"), HASHES["ann"]])
    assert extract_parameters(passwords.dummy_hash) == extract_parameters(dear.hash("x"))
    assert not passwords.verify(None, "x", b"y", 0.0)
    passwords.learn_cost([])


def test_what_is_remembered_is_one_password_of_one_user() -> None:
    passwords = Passwords(60.0)
    hashed = hash_password(b"bc")
    assert passwords.verify(hashed, "a", b"bc", 0.0)
    assert not passwords.verify(hashed, "ab", b"c", 0.0)
    assert passwords.hashes == 2
