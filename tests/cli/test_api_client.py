"""How `fleetmq ctl` finds a broker, what it sends, and what it says when that fails."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from mqtt_broker.cli.api_client import Api, duration, escaped
from mqtt_broker.cli.errors import Failure, UsageError
from tests.cli.fake_api import Answer, Ctl, FakeApi, problem


def test_the_broker_is_found_by_its_data_directory(
    ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLEETMQ_API")
    monkeypatch.chdir(tmp_path)
    ctl.api.answers["GET /health"] = {"health": "ok"}
    assert "no broker with an HTTP server runs on fleetmq-data" in ctl("health")[2]
    (tmp_path / "fleetmq-data").mkdir()
    address = json.dumps({"url": ctl.api.url, "pid": os.getpid()})
    (tmp_path / "fleetmq-data" / "http.json").write_text(address)
    assert ctl("health")[:2] == (0, "health  ok\n")
    assert "runs on elsewhere" in ctl("health", "--data-dir", "elsewhere")[2]
    assert ctl("health", "--api", ctl.api.url, "--data-dir", "elsewhere")[0] == 0


def test_the_token_comes_from_a_file_or_the_environment(
    ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctl.api.answers["GET /health"] = {"health": "ok"}
    monkeypatch.setenv("FLEETMQ_HTTP_TOKEN", "of-the-environment")
    ctl("health")
    assert ctl.api.last().token == "Bearer of-the-environment"
    (tmp_path / "token").write_text("of-the-file\n")
    ctl("health", "--token-file", str(tmp_path / "token"))
    assert ctl.api.last().token == "Bearer of-the-file"
    for text in ("two words", "", "é"):
        (tmp_path / "token").write_text(text)
        code, _, said = ctl("health", "--token-file", str(tmp_path / "token"))
        assert code == 2 and "one word of ASCII" in said
    assert ctl("health", "--token-file", str(tmp_path))[0] == 2


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (problem(400, "invalid sort 'x'"), 2, "invalid sort 'x'"),
        (problem(401, "the token is missing"), 1, "missing; give --token-file"),
        (problem(403, "this needs the role admin"), 1, "this needs the role admin"),
        (problem(404, "there is no client 'x'"), 1, "there is no client 'x'"),
        (problem(503, "two\nlines"), 1, "two lines"),
        (Answer(502, b"<html>"), 1, "is not the HTTP server of a FleetMQ broker"),
        (Answer(404, b"[]"), 1, "is not the HTTP server of a FleetMQ broker"),
        (Answer(500, b"{}"), 1, "is not the HTTP server of a FleetMQ broker"),
        (Answer(200, b"<html>"), 1, "is not the HTTP server of a FleetMQ broker"),
        (Answer(200, b"[" * 100_000), 1, "is not the HTTP server of a FleetMQ broker"),
    ],
)
def test_each_error_is_one_line(ctl: Ctl, answer: Answer, code: int, said: str) -> None:
    ctl.api.answers["GET /health"] = answer
    found, out, err = ctl("health")
    assert (found, out) == (code, "") and said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "http://", "http://x:y", "http://u:secret@x", "http://x/?a=b", "x", "http://[::1"],
)
def test_urls_that_cannot_be(ctl: Ctl, url: str) -> None:
    code, _, said = ctl("health", "--api", url)
    assert code == 2 and said.count("\n") == 1 and "secret" not in said


def test_a_server_that_is_not_there(ctl: Ctl) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        code, _, said = ctl("health", "--api", url)
    assert code == 1 and f"{url}: Connection refused; is a broker with an HTTP server" in said


def test_a_port_that_does_not_speak_http(ctl: Ctl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as near:
        closing = threading.Thread(target=lambda: near.accept()[0].close())
        closing.start()
        url = f"http://127.0.0.1:{near.getsockname()[1]}"
        code, _, said = ctl("health", "--api", url)
        closing.join()
    assert code == 1 and said.count("\n") == 1 and url in said
    assert "is it the port for MQTT?" in said or "Connection reset" in said


def test_pages_are_followed(api: FakeApi) -> None:
    api.pages("/x", [{"n": n} for n in range(2_500)])
    client = Api(api.url)
    items, total = client.pages("/x", {}, 0)
    assert [one["n"] for one in items] == list(range(2_500)) and total == 2_500
    assert [one.query["limit"] for one in api.asked] == ["1000"] * 3
    assert len(client.pages("/x", {}, 1_200)[0]) == 1_200
    assert len(client.pages("/x", {}, 3)[0]) == 3
    api.answers["GET /x"] = {"things": []}
    with pytest.raises(Failure, match="is not a list of items"):
        client.pages("/x", {}, 3)


def test_names_are_one_part_of_a_path(api: FakeApi) -> None:
    name = "a/b%?#é☂\udcff"
    client = Api(api.url)
    api.answers[f"GET /clients/{escaped(name)}"] = {"id": 1}
    assert client.get(f"/clients/{escaped(name)}") == {"id": 1}
    assert "/" not in escaped(name)
    with pytest.raises(Failure, match="nothing at"):
        client.get("/x", {"q": name, "online": True, "none": None})
    assert api.last().query["online"] == "true" and "none" not in api.last().query


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200)])
def test_durations(text: str, seconds: float) -> None:
    assert duration("--since", text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "5", "-5m", "5 m", "1w", "9" * 20 + "s"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--since is a duration such as 90s"):
        duration("--since", text)
