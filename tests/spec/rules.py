"""Every numbered rule of MQTT 5 (its appendix B) in our own words, and whom it binds.

`binds` is server, client or both: what binds a server has to stand as a tag in the source
and to be named by a test; `test_rules.py` looks. A rule is *moot* when nothing we do could
break it (`MOOT` says why). Rules that only 3.1.1 has are tagged `MQTT3-` with its number.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Rule(NamedTuple):
    number: str
    binds: str
    text: str


_TABLE: Final = """
1.5.4-1   both    a UTF-8 string is well-formed and has no surrogates
1.5.4-2   both    a UTF-8 string has no U+0000
1.5.4-3   both    EF BB BF is U+FEFF and is kept wherever it stands
1.5.5-1   both    a variable byte integer takes the fewest bytes
1.5.7-1   both    both strings of a pair are UTF-8 strings
2.1.3-1   both    reserved flags have the value listed
2.2.1-2   both    a QoS 0 PUBLISH has no packet identifier
2.2.1-3   client  a new SUBSCRIBE, UNSUBSCRIBE or PUBLISH takes an unused id that is not zero
2.2.1-4   server  a new PUBLISH of QoS 1 or 2 takes an unused id that is not zero
2.2.1-5   both    PUBACK, PUBREC, PUBREL and PUBCOMP carry the id of the PUBLISH
2.2.1-6   server  SUBACK and UNSUBACK carry the id of the request
2.2.2-1   both    no properties are written as a property length of zero
3.1.0-1   client  the first packet is CONNECT
3.1.0-2   server  a second CONNECT is a protocol error and closes
3.1.2-1   both    the protocol name is MQTT; a server may answer 0x84 and closes
3.1.2-2   server  a version that is not wanted: perhaps 0x84, then the close
3.1.2-3   server  the reserved connect flag is checked to be 0
3.1.2-4   both    Clean Start 1 discards the session there was
3.1.2-5   server  Clean Start 0 resumes the session there is
3.1.2-6   server  Clean Start 0 without a session makes a new one
3.1.2-7   server  Will Flag 1: the will is kept with the session
3.1.2-8   server  the will is published after the close, when its delay or the session ends, unless deleted
3.1.2-9   both    Will Flag 1: will properties, topic and payload are present
3.1.2-10  server  the will is removed once published, or on DISCONNECT with 0x00
3.1.2-11  client  Will Flag 0: will QoS is 0
3.1.2-12  client  will QoS is 0, 1 or 2
3.1.2-13  client  Will Flag 0: will retain is 0
3.1.2-14  server  will retain 0: the will is published not retained
3.1.2-15  server  will retain 1: the will is published retained
3.1.2-16  client  no user name flag, no user name
3.1.2-17  client  user name flag: a user name is there
3.1.2-18  client  no password flag, no password
3.1.2-19  client  password flag: a password is there
3.1.2-20  client  a client with nothing to say sends PINGREQ within its keep alive
3.1.2-21  client  a Server Keep Alive replaces the client's own
3.1.2-22  server  silence for one and a half keep alives closes the connection
3.1.2-23  both    a session expiry above 0 keeps the session after the close
3.1.2-24  server  nothing larger than the client's Maximum Packet Size is sent
3.1.2-25  server  what is too large is dropped as if it had been delivered
3.1.2-26  server  no alias above the client's Topic Alias Maximum
3.1.2-27  server  no alias at all when Topic Alias Maximum is absent or 0
3.1.2-28  server  no Response Information unless it was requested
3.1.2-29  server  Request Problem Information 0: reason strings only in CONNACK, DISCONNECT, PUBLISH
3.1.2-30  client  with an authentication method only AUTH and DISCONNECT before CONNACK
3.1.3-1   client  the payload's fields stand in their order
3.1.3-2   both    the client id names the session
3.1.3-3   client  the client id is present and first
3.1.3-4   client  the client id is a UTF-8 string
3.1.3-5   server  client ids of 1 to 23 letters and digits are allowed
3.1.3-6   server  an empty client id is given a unique one
3.1.3-7   server  which then counts as the client's own and is told in CONNACK
3.1.3-8   server  a client id that is refused: perhaps 0x85, then the close
3.1.3-9   server  a new connection to the session within the will delay cancels the will
3.1.3-10  server  the user properties of a will keep their order
3.1.3-11  client  the will topic is a UTF-8 string
3.1.3-12  client  the user name is a UTF-8 string
3.1.4-1   server  a CONNECT that is not well formed closes
3.1.4-2   server  a CONNECT that fails further checks closes
3.1.4-3   server  take-over: the old connection gets 0x8E and is closed
3.1.4-4   server  Clean Start is processed
3.1.4-5   server  CONNECT is answered by CONNACK 0x00
3.1.4-6   server  after a refused CONNECT nothing but AUTH is processed
3.2.0-1   server  CONNACK comes before anything but AUTH
3.2.0-2   server  one CONNACK a connection
3.2.2-1   server  bits 7 to 1 of the acknowledge flags are 0
3.2.2-2   server  Clean Start 1: session present is 0
3.2.2-3   server  Clean Start 0: session present says whether there was one
3.2.2-4   client  a client without state that is told of a session closes
3.2.2-5   client  a client with state that is told of none drops it
3.2.2-6   server  a refusal has session present 0
3.2.2-7   server  a refusal of 0x80 or more closes
3.2.2-8   server  CONNACK carries one of its reason codes
3.2.2-9   server  a server without QoS 2 says its Maximum QoS
3.2.2-10  server  and still accepts SUBSCRIBE with any QoS
3.2.2-11  client  a client does not publish above the Maximum QoS
3.2.2-12  server  a will QoS above the maximum is refused
3.2.2-13  server  a retained will is refused where nothing is retained
3.2.2-14  client  a client does not retain where nothing is retained
3.2.2-15  client  a client sends nothing above our Maximum Packet Size
3.2.2-16  server  an empty client id is answered by a new Assigned Client Identifier
3.2.2-17  client  no alias above our Topic Alias Maximum
3.2.2-18  client  no alias when our Topic Alias Maximum is absent or 0
3.2.2-19  server  no Reason String that makes CONNACK too large
3.2.2-20  server  no User Property that makes CONNACK too large
3.2.2-21  client  the client obeys Server Keep Alive
3.2.2-22  server  without Server Keep Alive the client's value holds
3.3.1-1   both    a repeated PUBLISH has DUP
3.3.1-2   both    a QoS 0 PUBLISH has no DUP
3.3.1-3   server  DUP going out has nothing to do with DUP coming in
3.3.1-4   both    a PUBLISH never has both QoS bits
3.3.1-5   server  RETAIN 1 replaces the retained message
3.3.1-6   server  an empty retained payload removes it
3.3.1-7   server  an empty payload is not stored
3.3.1-8   server  RETAIN 0 neither stores nor removes
3.3.1-9   server  retain handling 0 sends the retained messages
3.3.1-10  server  retain handling 1 sends them only for a new subscription
3.3.1-11  server  retain handling 2 sends none
3.3.1-12  server  without Retain As Published the flag is 0 when forwarded
3.3.1-13  server  with Retain As Published the flag is as it came
3.3.2-1   both    the topic name is there, first, and a UTF-8 string
3.3.2-2   both    a topic name has no wildcards
3.3.2-3   server  what is sent to a subscriber matches its filter
3.3.2-4   server  payload format goes on unaltered
3.3.2-5   server  an expired message that has not started is dropped
3.3.2-6   server  the expiry that is sent is less by the time spent here
3.3.2-7   both    aliases die with the connection
3.3.2-8   both    no alias 0
3.3.2-9   client  no alias above our maximum
3.3.2-10  client  a client takes every alias up to its maximum
3.3.2-11  server  no alias above the client's maximum
3.3.2-12  server  every alias up to our maximum is taken
3.3.2-13  both    the response topic is a UTF-8 string
3.3.2-14  both    the response topic has no wildcards
3.3.2-15  server  the response topic goes on unaltered
3.3.2-16  server  correlation data goes on unaltered
3.3.2-17  server  user properties go on unaltered
3.3.2-18  server  and in their order
3.3.2-19  both    the content type is a UTF-8 string
3.3.2-20  server  and goes on unaltered
3.3.4-1   both    PUBLISH is answered as its QoS says
3.3.4-2   server  overlapping subscriptions: the highest QoS of them
3.3.4-3   server  overlapping subscriptions: their identifiers are sent
3.3.4-4   server  one copy carries the identifiers of all that match
3.3.4-5   server  several copies carry the identifier of their own
3.3.4-6   client  a client sends no Subscription Identifier in PUBLISH
3.3.4-7   client  a client does not exceed our Receive Maximum
3.3.4-8   client  a client delays nothing but PUBLISH for it
3.3.4-9   server  we do not exceed the client's Receive Maximum
3.3.4-10  server  we delay nothing but PUBLISH for it
3.4.2-1   both    PUBACK carries one of its reason codes
3.4.2-2   both    no Reason String that makes PUBACK too large
3.4.2-3   both    no User Property that makes PUBACK too large
3.5.2-1   both    PUBREC carries one of its reason codes
3.5.2-2   both    no Reason String that makes PUBREC too large
3.5.2-3   both    no User Property that makes PUBREC too large
3.6.1-1   both    the flags of PUBREL are 0010
3.6.2-1   both    PUBREL carries one of its reason codes
3.6.2-2   both    no Reason String that makes PUBREL too large
3.6.2-3   both    no User Property that makes PUBREL too large
3.7.2-1   both    PUBCOMP carries one of its reason codes
3.7.2-2   both    no Reason String that makes PUBCOMP too large
3.7.2-3   both    no User Property that makes PUBCOMP too large
3.8.1-1   server  the flags of SUBSCRIBE are 0010
3.8.3-1   client  topic filters are UTF-8 strings
3.8.3-2   client  SUBSCRIBE has at least one filter
3.8.3-3   server  No Local: not back to the client that published
3.8.3-4   client  No Local on a shared subscription is a protocol error
3.8.3-5   server  reserved option bits are malformed
3.8.4-1   server  SUBSCRIBE is answered by SUBACK
3.8.4-2   server  with the same packet id
3.8.4-3   server  the same filter again replaces the subscription
3.8.4-4   server  and with retain handling 0 sends retained messages again; nothing is lost
3.8.4-5   server  many filters are as many SUBSCRIBEs with one answer
3.8.4-6   server  SUBACK has a reason code for each filter
3.8.4-7   server  which is the QoS granted or a failure
3.8.4-8   server  the QoS sent is the smaller of published and granted
3.9.2-1   server  no Reason String that makes SUBACK too large
3.9.2-2   server  no User Property that makes SUBACK too large
3.9.3-1   server  SUBACK's codes stand in the order of the filters
3.9.3-2   server  SUBACK carries its own reason codes
3.10.1-1  server  the flags of UNSUBSCRIBE are 0010
3.10.3-1  client  its filters are UTF-8 strings
3.10.3-2  client  it has at least one
3.10.4-1  server  filters are compared character by character
3.10.4-2  server  nothing new is added for a filter that is gone
3.10.4-3  server  what was begun is completed
3.10.4-4  server  UNSUBSCRIBE is answered by UNSUBACK
3.10.4-5  server  with the same packet id, also when nothing was deleted
3.10.4-6  server  many filters, one answer
3.11.2-1  server  no Reason String that makes UNSUBACK too large
3.11.2-2  server  no User Property that makes UNSUBACK too large
3.11.3-1  server  UNSUBACK's codes stand in the order of the filters
3.11.3-2  server  UNSUBACK carries its own reason codes
3.12.4-1  server  PINGREQ is answered by PINGRESP
3.14.0-1  server  no DISCONNECT before a CONNACK below 0x80
3.14.1-1  both    the flags of DISCONNECT are 0, else 0x81
3.14.2-1  both    DISCONNECT carries one of its reason codes
3.14.2-2  server  a server's DISCONNECT has no session expiry
3.14.2-3  both    no Reason String that makes DISCONNECT too large
3.14.2-4  both    no User Property that makes DISCONNECT too large
3.14.4-1  both    nothing is sent after DISCONNECT
3.14.4-2  both    who sent DISCONNECT closes
3.14.4-3  server  DISCONNECT 0x00 discards the will
3.15.1-1  both    the flags of AUTH are 0
3.15.2-1  both    AUTH carries one of its reason codes
3.15.2-2  both    no Reason String that makes AUTH too large
3.15.2-3  both    no User Property that makes AUTH too large
4.1.0-1   both    a session is not dropped while its connection is open
4.1.0-2   server  it is dropped when it expired after the close
4.2-1     both    the transport is ordered and lossless
4.3.1-1   both    QoS 0 goes out with QoS 0 and no DUP
4.3.2-1   both    QoS 1: each new message has an unused id
4.3.2-2   both    QoS 1: first sent without DUP
4.3.2-3   both    QoS 1: unacknowledged until PUBACK
4.3.2-4   both    QoS 1: answered by PUBACK with its id
4.3.2-5   both    QoS 1: the same id after PUBACK is a new message, DUP or not
4.3.3-1   both    QoS 2: each new message has an unused id
4.3.3-2   both    QoS 2: first sent without DUP
4.3.3-3   both    QoS 2: unacknowledged until PUBREC
4.3.3-4   both    QoS 2: PUBREC below 0x80 is answered by PUBREL
4.3.3-5   both    QoS 2: PUBREL is unacknowledged until PUBCOMP
4.3.3-6   both    QoS 2: no PUBLISH again after PUBREL
4.3.3-7   both    QoS 2: what was sent does not expire
4.3.3-8   both    QoS 2: answered by PUBREC with its id
4.3.3-9   both    QoS 2: after PUBREC of 0x80 or more the id is new again
4.3.3-10  both    QoS 2: until PUBREL the same id is answered and not delivered again
4.3.3-11  both    QoS 2: PUBREL is answered by PUBCOMP
4.3.3-12  both    QoS 2: after PUBCOMP the id is new again
4.3.3-13  both    QoS 2: the exchange goes on though the message expired
4.4.0-1   both    resume resends PUBLISH and PUBREL with their ids, and only then
4.4.0-2   both    what got 0x80 or more is done and not sent again
4.5.0-1   server  an accepted message is added for every matching session
4.5.0-2   client  a client acknowledges whatever it gets
4.6.0-1   client  PUBLISH is resent in the order first sent
4.6.0-2   client  PUBACKs go in the order of the PUBLISHes
4.6.0-3   client  PUBRECs go in the order of the PUBLISHes
4.6.0-4   client  PUBRELs go in the order of the PUBRECs
4.6.0-5   server  per publisher, topic and QoS the order is kept
4.6.0-6   server  every topic is ordered
4.7.0-1   both    wildcards stand in filters only
4.7.1-1   client  # stands alone or behind a separator, and last
4.7.1-2   client  + fills a whole level
4.7.2-1   server  a leading wildcard does not match a topic that begins with $
4.7.3-1   both    topics and filters have at least one character
4.7.3-2   both    and no U+0000
4.7.3-3   both    and at most 65,535 bytes
4.7.3-4   server  nothing is normalised in matching
4.8.2-1   client  a shared filter is $share/, a name of at least one character
4.8.2-2   client  without / + #, then / and a filter
4.8.2-3   server  shared: the granted QoS of the member holds
4.8.2-4   server  shared: a QoS 2 delivery that began is completed with that member
4.8.2-5   server  shared: and ends with its session, it goes to no other
4.8.2-6   server  shared: a refusal of 0x80 or more discards the message
4.9.0-1   both    the send quota begins above 0 and at most at Receive Maximum
4.9.0-2   both    at quota 0 no PUBLISH above QoS 0 is sent
4.9.0-3   both    and everything else goes on
4.12.0-1  server  an authentication method we lack closes, perhaps with 0x8C
4.12.0-2  server  AUTH to the client carries 0x18
4.12.0-3  client  AUTH from the client carries 0x18
4.12.0-4  server  a failed exchange closes
4.12.0-5  both    every AUTH and the CONNACK name the same method
4.12.0-6  server  without a method no AUTH and no method in CONNACK
4.12.0-7  client  without a method a client sends no AUTH
4.12.1-1  client  re-authentication is AUTH 0x19 with the same method
4.12.1-2  both    failed re-authentication closes
4.13.1-1  server  a malformed packet or protocol error closes
4.13.2-1  both    a code of 0x80 or more closes, sent or not
6.0.0-1   both    WebSocket frames are binary; another closes
6.0.0-2   both    packets need not be aligned to frames
6.0.0-3   client  a client offers the subprotocol mqtt
6.0.0-4   server  the server selects mqtt
"""

_TABLE_V3: Final = """
3.1.2-22  client  a password needs a user name
3.1.3-7   client  an empty client id needs Clean Session 1
3.1.3-8   server  without it the answer is return code 0x02 and the close
3.2.2-6   server  a refusal that has no return code is the close alone
3.8.3-4   server  the upper six bits of the requested QoS are reserved
3.9.3-2   server  SUBACK has no codes but 0x00, 0x01, 0x02 and 0x80
4.8.0-1   server  a protocol violation is answered by the close alone
"""

_REASON_TEXT: Final = "we send no Reason String and no User Property of our own"
MOOT: Final[dict[str, str]] = {
    **{
        f"MQTT-{number}": _REASON_TEXT
        for number in (
            "3.2.2-19", "3.2.2-20", "3.4.2-2", "3.4.2-3", "3.5.2-2", "3.5.2-3", "3.6.2-2",
            "3.6.2-3", "3.7.2-2", "3.7.2-3", "3.9.2-1", "3.9.2-2", "3.11.2-1", "3.11.2-2",
            "3.14.2-3", "3.14.2-4", "3.15.2-2", "3.15.2-3",
        )
    },
    "MQTT-3.3.4-5": "overlapping subscriptions are one PUBLISH, never several",
    **{
        f"MQTT-6.0.0-{number}": "there is no WebSocket listener" for number in (1, 2, 4)
    },
    "MQTT-4.2-1": "TCP, TLS and WebSocket are ordered and lossless",
}  # fmt: skip


def _parse(table: str, prefix: str) -> dict[str, Rule]:
    rules = {}
    for line in table.strip().splitlines():
        number, binds, text = line.split(None, 2)
        assert binds in ("server", "client", "both"), line
        assert prefix + number not in rules, line
        rules[prefix + number] = Rule(prefix + number, binds, text)
    return rules


RULES: Final[dict[str, Rule]] = {**_parse(_TABLE, "MQTT-"), **_parse(_TABLE_V3, "MQTT3-")}
