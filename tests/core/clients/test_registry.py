"""The registry of clients counts the connections of each user, and forgets users without any."""

from __future__ import annotations

from typing import Any

from mqtt_broker.core.clients.registry import ClientRegistry


def test_connections_are_counted_by_user() -> None:
    registry, client = ClientRegistry(), _client()
    registry.connect(client, "one", "ann")
    registry.connect(client, "two", "ann")
    registry.connect(client, "three", "bob")
    registry.connect(client, "four", None)
    assert registry.users == {"ann": 2, "bob": 1}
    assert list(registry.connections) == ["one", "two", "three", "four"]
    registry.disconnect("one")
    registry.disconnect("four")
    assert registry.users == {"ann": 1, "bob": 1}
    registry.disconnect("two")
    assert registry.users == {"bob": 1}, "a user without connections takes no memory"
    registry.connect(client, "one", None)  # the user of before is not its user now
    registry.disconnect("one")
    assert registry.users == {"bob": 1} and list(registry.connections) == ["three"]


def test_a_client_that_comes_again_does_not_count_against_its_user() -> None:
    registry, client = ClientRegistry(), _client()
    registry.connect(client, "one", "ann")
    registry.connect(client, "two", "ann")
    registry.connect(client, "three", "bob")
    assert registry.connections_of("ann", but="one") == 1
    assert registry.connections_of("ann", but="three") == 2, "that client is another user's"
    assert registry.connections_of("ann", but="new") == 2
    assert registry.connections_of("nobody", but="one") == 0


def test_open_connections_are_kept_in_the_order_they_came() -> None:
    registry = ClientRegistry()
    one, two, three = _client(), _client(), _client()
    for client in (one, two, three):
        registry.add(client)
    registry.remove(two)
    registry.remove(two)  # closed twice
    assert list(registry.links) == [one, three]


def test_a_registry_that_is_shut_down_says_so() -> None:
    registry = ClientRegistry()
    assert not registry.is_shutting_down
    registry.shut_down()
    assert registry.is_shutting_down


def _client() -> Any:
    return object()
