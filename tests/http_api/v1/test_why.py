"""The flight recorder over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from mqtt_broker.cli.ctl_lists import LISTS
from mqtt_broker.http_api.v1.why import EventKind, seconds_ago
from mqtt_broker.recorder.kinds import KIND_NAMES
from mqtt_broker.testing import ThreadedBroker

STRANGE = "pümp/7 %<b>🙂"


def ask(broker: ThreadedBroker, path: str, **query: str) -> tuple[int, Any]:
    url = f"{broker.http_url}/api/v1/{path}"
    if query:
        url += "?" + urllib.parse.urlencode(query)
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker(http="127.0.0.1:0") as running:
        running.publish("plant/7/cmd", b"x", qos=1)
        yield running


def test_why_in_a_sentence(broker: ThreadedBroker) -> None:
    status, found = ask(broker, "why", client=STRANGE, topic="plant/7/cmd", since="10m")
    assert status == 200
    assert found["sentence"] == f"there is no session of `{STRANGE}`"
    assert found["facts"][0]["kind"] == "published"
    assert found["sees_back_to"] > 1_600_000_000
    assert found["advice"]


def test_why_of_one_message(broker: ThreadedBroker) -> None:
    facts = ask(broker, "why", client="c", topic="plant/7/cmd")[1]["facts"]
    (name,) = (fact["message"] for fact in facts if fact["kind"] == "published")
    status, found = ask(broker, "why", client="c", message=name)
    assert status == 200
    assert [fact["message"] for fact in found["facts"]] == [name]
    publisher = name.rpartition("@")[0]
    found = ask(broker, "why", client="c", message=f"{publisher}@2001-01-01T00:00:00Z")[1]
    assert "is recorded: the recorder sees back to" in found["sentence"]


def test_events_are_paged(broker: ThreadedBroker) -> None:
    status, found = ask(broker, "events", kind="connected", limit="1")
    assert status == 200
    assert {fact["kind"] for fact in found["items"]} <= {"connected"}
    status, found = ask(broker, f"clients/{urllib.parse.quote(STRANGE, safe='')}/events")
    assert status == 200 and found["items"] == []


def test_an_unknown_kind_of_events_is_refused_with_those_there_are(broker: ThreadedBroker) -> None:
    status, found = ask(broker, "events", kind="conected")
    assert status == 400
    for kind in get_args(EventKind):
        assert kind in found["detail"]
    assert set(get_args(EventKind)) <= set(KIND_NAMES.values())
    listed = next(one for one in LISTS["events"].filters if one.option == "kind").help
    assert listed.partition(": ")[2].split(", ") == list(get_args(EventKind))


def test_slow_subscribers_are_listed(broker: ThreadedBroker) -> None:
    assert ask(broker, "slow") == (200, {"items": [], "next": None, "total": 0})


def test_the_busiest_topics_are_listed(broker: ThreadedBroker) -> None:
    status, found = ask(broker, "topics", q="plant/")
    assert status == 200
    assert [(one["topic"], one["messages_in"]) for one in found["items"]] == [("plant/7/cmd", 1)]
    assert ask(broker, "topics", q="nothing")[1]["total"] == 0


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        ("why", {}, "client"),
        ("why", {"client": ""}, "client"),
        ("why", {"client": "c", "since": "soon"}, "since must be"),
        ("why", {"client": "c", "colour": "red"}, "colour"),
        ("why", {"client": "c", "message": "app"}, "PUBLISHER@TIME"),
        ("events", {"since": "-5"}, "since must be"),
        ("events", {"cursor": "x"}, "cursor"),
        ("slow", {"limit": "0"}, "limit"),
    ],
)
def test_wrong_questions_are_told(
    broker: ThreadedBroker, path: str, query: dict[str, str], said: str
) -> None:
    status, found = ask(broker, path, **query)
    assert status == 400
    assert said in found["detail"]


def test_a_broker_that_records_nothing_says_so() -> None:
    with ThreadedBroker(http="127.0.0.1:0", recorder_bytes_max=0) as running:
        status, found = ask(running, "why", client="c")
        assert status >= 400
        assert "recorder_bytes_max is 0" in found["detail"]


def test_ages_and_times() -> None:
    assert seconds_ago("90s") == 90
    assert seconds_ago("2h") == 7_200
    assert seconds_ago("9999999999") == 0
