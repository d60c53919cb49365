"""The bus over a real NATS server: what crosses, what is dropped, and what it says of itself."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import pytest

from mqtt_broker.cluster.bus import nats_bus, nats_link
from mqtt_broker.cluster.bus.interface import Bus
from mqtt_broker.cluster.frames.batches import Batches
from mqtt_broker.cluster.frames.bodies import Hint, encode_entries, encode_ping
from mqtt_broker.cluster.frames.layout import HINT, MESSAGES, PING, Drop
from tests.cluster.bus.conftest import StartNats
from tests.cluster.bus.nats_server import NatsServer
from tests.cluster.bus.nodes import SECRET, Node, Nodes
from tests.server.certificates import Authority


def lines(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


def test_frames_cross_in_their_order(nats: NatsServer, nodes: Nodes) -> None:
    one, two = nodes.connected(nats.url, cluster="order")
    for number in range(500):
        assert one.ping(1, 2, number)
    assert two.ping(2, 1, 7)
    nodes.until(lambda: len(two.frames) == 500 and one.frames)
    assert two.bodies == list(range(500)) and one.bodies == [7]
    assert {(frame.sender, frame.to) for frame in two.frames} == {(1, 2)}
    assert two.bus.reader.missing == 0 and not any(two.bus.reader.dropped.values())
    bus: Bus = one.bus
    assert bus.problem == "" and one.bus.frames_out == 500


def test_a_hint_goes_to_all_others_and_not_back(nats: NatsServer, nodes: Nodes) -> None:
    one, two, three = nodes.connected(nats.url, cluster="hints", count=3)
    assert one.bus.broadcast(1, HINT, Hint(1, 2, 3).encode())
    nodes.until(lambda: two.frames and three.frames)
    assert two.ping(2, 1, 1)
    nodes.until(lambda: one.frames)
    assert [frame.kind for frame in one.frames] == [PING]
    assert not any(one.bus.reader.dropped.values())


def _says(node: Node, text: str) -> bool:
    return text in node.bus.problem


def _came(node: Node, body: object) -> bool:
    return body in node.bodies


def test_messages_of_every_size_cross(nats: NatsServer, nodes: Nodes) -> None:
    one, two = nodes.connected(nats.url, cluster="sizes")

    batches = Batches(lambda to, body: one.bus.send(1, to, MESSAGES, body))
    entries = [bytes([size % 251]) * size for size in (0, 1, 500, 32_767, 32_768, 500_000)] * 3
    for entry in entries:
        batches.add(2, entry)
    batches.flush()
    nodes.until(lambda: sum(len(frame.body) for frame in two.frames) == len(entries))
    assert [entry for frame in two.frames for entry in frame.body] == entries
    assert not batches.dropped


def test_what_nats_does_not_take_is_dropped_and_said(
    start_nats: StartNats, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = nodes.connected(start_nats("max_payload: 8KB").url)
    assert not one.bus.send(1, 2, PING, bytes(8192))
    assert not one.bus.send(1, 2, PING, bytes(8192))
    assert one.ping(1, 2, 1)
    nodes.until(lambda: two.frames)
    assert one.bus.dropped_out == {nats_bus.TOO_LARGE: 2}
    assert len(lines(caplog, "set max_payload to 1048576 in the configuration of NATS")) == 1


def test_numbers_move_between_processes(nats: NatsServer, nodes: Nodes) -> None:
    one, two = nodes.connected(nats.url, cluster="moves")
    hosts = {1: "a", 2: "b", 3: "c"}
    two.bus.set_hosts(hosts, [2, 3])
    assert two.ping(3, 1, 1) and two.ping(2, 1, 2)  # NATS has subscribed by then
    nodes.until(lambda: len(one.frames) == 2)
    assert one.ping(1, 3, 3)
    nodes.until(lambda: two.frames)
    assert (two.frames[0].to, two.bodies) == (3, [3])
    # The number comes to the first under another epoch.
    hosts[3] = "later"
    two.bus.set_hosts(hosts, [2])
    assert one.ping(1, 3, 4)  # it has not heard of it
    one.bus.set_hosts(hosts, [1, 3])
    assert one.ping(3, 2, 5)
    nodes.until(lambda: two.ping(2, 3, 6) and 6 in one.bodies)  # NATS may hear of it later
    nodes.until(lambda: len(two.frames) == 2)
    assert two.bodies == [3, 5]
    assert not two.ping(3, 1, 7) and not one.ping(1, 9, 7)
    assert two.bus.dropped_out == one.bus.dropped_out == {nats_bus.UNKNOWN_NUMBER: 1}


def test_clusters_with_one_name_and_two_secrets(
    nats: NatsServer, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = nodes.connected(nats.url, cluster="twins")
    other = nodes.add([1], nats.url, cluster="twins", secret=SECRET[::-1])
    nodes.until(lambda: other.bus.is_connected)
    for _ in range(20):
        assert other.ping(1, 2, 1)
    nodes.until(lambda: two.bus.reader.dropped[Drop.FORGED] == 20)
    assert one.ping(1, 2, 2)
    nodes.until(lambda: two.frames)
    assert two.bodies == [2]
    assert len(lines(caplog, "another cluster named 'twins' uses the same NATS")) == 1


def test_clusters_with_other_names_do_not_meet(nats: NatsServer, nodes: Nodes) -> None:
    one, two = nodes.connected(nats.url, cluster="left")
    other = nodes.add([2], nats.url, cluster="right")
    nodes.until(lambda: other.bus.is_connected)
    assert one.bus.broadcast(1, HINT, Hint(0, 0, 0).encode()) and one.ping(1, 2, 1)
    nodes.until(lambda: len(two.frames) == 2)
    assert not other.frames and not any(other.bus.reader.dropped.values())


# Who is let in.


@pytest.mark.parametrize(
    ("configuration", "user"),
    [
        ('authorization {user: "a b", password: "p@:/"}', "a%20b:p%40%3A%2F@"),
        ('authorization {token: "s3cret"}', "s3cret@"),
    ],
)
def test_passwords_and_tokens(
    start_nats: StartNats,
    nodes: Nodes,
    caplog: pytest.LogCaptureFixture,
    configuration: str,
    user: str,
) -> None:
    server = start_nats(configuration)
    nodes.connected(f"nats://{user}127.0.0.1:{server.port}")
    for wrong in ("", "no:body@", "nothing@"):
        node = nodes.add([3], f"nats://{wrong}127.0.0.1:{server.port}")
        nodes.until(partial(_says, node, "Authorization Violation"))
        assert not node.bus.is_connected
    assert user.rstrip("@") not in caplog.text


def test_keys(start_nats: StartNats, nodes: Nodes, tmp_path: Path) -> None:
    # From the documentation of NATS.
    seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    public = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
    (tmp_path / "user.nk").write_text(f"{seed}\n")
    server = start_nats(f'authorization {{users: [{{nkey: "{public}"}}]}}')
    nodes.connected(server.url, credentials=str(tmp_path / "user.nk"))


def test_tls(start_nats: StartNats, nodes: Nodes, tmp_path: Path) -> None:
    authority = Authority()
    cert, key = authority.issue("localhost", ip="127.0.0.1").write(tmp_path, "server")
    mine, my_key = authority.issue("node").write(tmp_path, "node")
    ca = authority.write(tmp_path)
    server = start_nats(
        f'tls {{cert_file: "{cert}", key_file: "{key}", ca_file: "{ca}", verify: true}}'
    )
    url = f"tls://127.0.0.1:{server.port}"
    # It says in clear text that TLS is required, which is why nats:// works, too.
    one, two = nodes.connected(url, server.url, ca=ca, cert=mine, key=my_key)
    for number in range(40):
        assert one.bus.send(1, 2, MESSAGES, _entries(number, 32_000))
    nodes.until(lambda: len(two.frames) == 40)
    assert [frame.body[0] for frame in two.frames] == [bytes([n]) * 32_000 for n in range(40)]
    stranger = nodes.add([3], url, cert=mine, key=my_key)
    nodes.until(lambda: "its certificate is not accepted" in stranger.bus.problem)
    anonymous = nodes.add([3], url, ca=ca)
    nodes.until(lambda: anonymous.bus.problem.startswith(url))
    assert not anonymous.bus.is_connected


def _entries(number: int, size: int) -> bytes:
    return encode_entries([bytes([number]) * size])


def test_a_url_with_tls_is_never_served_without(nats: NatsServer, nodes: Nodes) -> None:
    node = nodes.add([1], f"tls://user:secret@127.0.0.1:{nats.port}")
    nodes.until(lambda: "it offers no TLS, and its URL says tls://" in node.bus.problem)
    assert "secret" not in node.bus.problem


def test_missing_rights_are_said_once(
    start_nats: StartNats, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_nats(
        "authorization {users: [{user: u, password: p, permissions: "
        '{publish: "other.>", subscribe: "fleetmq.fleet.>"}}]}'
    )
    one, two = nodes.connected(f"nats://u:p@127.0.0.1:{server.port}")
    for number in range(10):
        assert one.ping(1, 2, number)
    nodes.until(lambda: one.bus.problem)
    assert "allow this user to publish and to subscribe to fleetmq.fleet.>" in one.bus.problem
    assert 'Permissions Violation for Publish to "fleetmq.fleet.2"' in one.bus.problem
    for number in range(10):
        assert one.ping(1, 2, number)
    nodes.run_for(0.05)
    assert not two.frames
    assert len(lines(caplog, "allow this user to publish")) == 1


def test_rights_to_subscribe(start_nats: StartNats, nodes: Nodes) -> None:
    server = start_nats(
        "authorization {users: [{user: u, password: p, permissions: "
        '{publish: "fleetmq.fleet.>", subscribe: "other.>"}}]}'
    )
    (one,) = nodes.connected(f"nats://u:p@127.0.0.1:{server.port}", count=1)
    assert "Permissions Violation for Subscription" in one.bus.problem


# NATS is away.


def test_nats_comes_later(
    start_nats: StartNats, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_nats()
    server.stop()
    node = nodes.add([1], server.url)
    nodes.until(lambda: "Connection refused" in node.bus.problem)
    assert not node.ping(1, 2, 1)
    assert node.bus.dropped_out == {nats_bus.NOT_CONNECTED: 1}
    server.start()
    nodes.until(lambda: node.bus.is_connected)
    assert node.bus.problem == ""
    assert len(lines(caplog, f"{server.url}: Connection refused; it is tried again")) == 1


def test_nats_goes_and_comes_back(start_nats: StartNats, nodes: Nodes) -> None:
    server = start_nats()
    one, two = nodes.connected(server.url)
    for round_ in range(3):
        server.stop()
        nodes.until(lambda: not (one.bus.is_connected or two.bus.is_connected))
        assert one.bus.problem
        server.start()
        nodes.until(lambda: one.bus.is_connected and two.bus.is_connected)
        assert one.ping(1, 2, round_)
        nodes.until(partial(_came, two, round_))
    assert one.bus.connects == 4


def test_another_server_is_tried(nats: NatsServer, start_nats: StartNats, nodes: Nodes) -> None:
    gone = start_nats()
    gone.stop()
    one, two = nodes.connected(gone.url, nats.url, cluster="several")
    assert one.ping(1, 2, 1)
    nodes.until(lambda: two.frames)


def test_a_host_that_is_not_found(nodes: Nodes) -> None:
    node = nodes.add([1], "nats://no-such-host.invalid:4222")
    nodes.until(lambda: "its host is not found" in node.bus.problem)


def test_names_are_looked_up(nats: NatsServer, nodes: Nodes) -> None:
    node = nodes.add([1], f"nats://localhost:{nats.port}", cluster="names")
    nodes.until(lambda: node.bus.is_connected)


def test_a_frozen_server_costs_frames_and_no_memory(
    start_nats: StartNats, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_nats()
    one, two = nodes.connected(server.url)
    monkeypatch.setattr(nats_bus, "CHECK_S", 0.1)
    monkeypatch.setattr(nats_bus, "CONNECT_S", 0.2)
    body = encode_ping(1) + bytes(100_000)
    server.freeze()
    most = 0
    while one.bus.send(1, 2, PING, body):
        most = max(most, one.bus.queued_bytes)
    assert one.bus.dropped_out == {nats_bus.BUFFER_FULL: 1}
    assert nats_link.SEND_BYTES_MAX - 200_000 < most <= nats_link.SEND_BYTES_MAX + 100
    nodes.until(lambda: "silent" in one.bus.problem and one.bus.queued_bytes == 0)
    assert one.bus.dropped_out[nats_bus.CONNECTION_LOST] > 0
    nodes.until(lambda: "it does not answer within 0.2 s" in one.bus.problem)
    server.thaw()
    monkeypatch.undo()
    nodes.until(lambda: one.bus.is_connected and two.bus.is_connected)
    assert one.ping(1, 2, 5)
    nodes.until(lambda: 5 in two.bodies)


def test_who_is_no_nats_is_left(nodes: Nodes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        node = nodes.add([1], f"nats://127.0.0.1:{server.getsockname()[1]}")
        server.settimeout(30)
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            nodes.until(lambda: "does not speak the protocol of NATS" in node.bus.problem)


def test_a_stopped_bus_says_so_and_sends_what_it_has(nats: NatsServer, nodes: Nodes) -> None:
    one, two = nodes.connected(nats.url, cluster="stops")
    assert one.ping(1, 2, 1)
    one.bus.stop()
    assert one.bus.problem == "it is stopped" and not one.bus.is_connected
    nodes.until(lambda: two.frames)
    one.bus.stop()
    never = nodes.add([3], nats.url, start=False)
    assert never.bus.problem == "it is not started"
    never.bus.stop()
