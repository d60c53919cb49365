"""The notation of the vectors: text to steps. What the steps do is in `harness`.

A file (`vectors/*.vec`) holds many vectors. `--` begins a comment.

    versions: v311 v5         for all vectors below, until another such line outside a vector

    == the-name
    rules: MQTT-3.1.4-1 ...   the rules it examines (may be repeated)
    versions: v5              this vector only; it is played once for each
    settings: max_keepalive=60
    a connect                 `a` is a connection; its name is also its client id
    a > 30 { "t" p{} 'x' }    the peer sends these bytes, in one piece
    a < D0 00                 exactly these bytes come next
    a <~ 40 02 w1             the same, but neighbouring <~ lines come in any order
    each: X = 41 | 42 | 44    one vector for each, with `$X` replaced in its lines
    for 1 20: a gets "t" 'x' qos=1 mid=%      the line for each number, in place of `%`
    a silent                  nothing has come, the connection is open
    a closed                  nothing (more) has come, the connection is closed
    a drop                    the peer's connection breaks
    wait 2.5                  seconds pass
    [v5] a silent             a line for some versions only: [v31,v311]

Bytes: `0A0B` hexadecimal, in capitals; `"text"` a string with its two length bytes; `'text'`
without; `\\x00` and `\\u2026` inside; `w5` two bytes, `d5` four, `v300` a variable byte integer;
`{ }` puts the length of what is inside in front as a variable byte integer, `[ ]` as two
bytes, `( )` nothing; `p{ }` is a `{ }` that exists only in MQTT 5: a property section;
`20*'a'` repeats; `..` is any byte (only in what is expected).

Shorthands, which know the version of their connection:

    a connect [v5] [id="x"] [clean=0] [lasting] [keep=60] [props={..}] [present]
              [will=(.. "topic" ..)] [willqos=1] [willretain] [user="u"] [password="p"]
                              sends CONNECT and expects the default CONNACK; `lasting` is a
                              session that outlives its connection in every version, `present`
                              expects that there was one; `will` holds all three fields of it
    a subscribe "f" [qos=1] [opts=2C] [props={..}] [mid=9]    and its SUBACK
    a unsubscribe "f" [mid=9] [code=11]                       and its UNSUBACK
    a publish "t" 'x' [qos=1 mid=5] [retain] [dup] [props={..}]     sends it
    a gets "t" 'x' [qos=1 mid=5] [retain] [dup] [props={..}]        expects it (also gets~)
    a puback 5 [code=10]      expects it (also pubrec, pubrel, pubcomp; and with ~)
    a leave                   DISCONNECT and the close
    a thrown 82               expects DISCONNECT with the code (nothing in 3.1.1) and the close
    a rejected 85 [v3=02]     expects CONNACK with the code (in 3.1.1 `v3` or nothing) and the close
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

V31, V311, V5 = 3, 4, 5
VERSIONS: Final = {"v31": V31, "v311": V311, "v5": V5}
DEFAULT_CONNACK_PROPERTIES: Final = bytes.fromhex("22000A27001E8480210014")

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<any>\.\.)
    | (?P<text>'(?:[^'\\]|\\.)*')
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<key>[a-z0-9]+)=
    | (?P<repeat>\d+)\*
    | (?P<open>p\{|[{\[(])
    | (?P<close>[}\])])
    | (?P<number>[wdv]\d+)\b
    | (?P<hex>(?:[0-9A-F]{2})+)(?![0-9A-Za-z])
    | (?P<word>[A-Za-z0-9.~+-]+)
    )""",
    re.VERBOSE,
)


class NotationError(Exception):
    """A vector file cannot be read."""


@dataclass(slots=True)
class Pattern:
    """Bytes, some of which may be anything."""

    data: bytes = b""
    any: frozenset[int] = frozenset()

    def __add__(self, other: Pattern) -> Pattern:
        shift = len(self.data)
        return Pattern(self.data + other.data, self.any | {at + shift for at in other.any})

    def matches(self, data: bytes) -> bool:
        if len(data) != len(self.data):
            return False
        if not self.any:
            return data == self.data
        return all(at in self.any or data[at] == byte for at, byte in enumerate(self.data))

    def __str__(self) -> str:
        shown = [
            ".." if at in self.any else f"{byte:02X}" for at, byte in enumerate(self.data[:400])
        ]
        return " ".join(shown) + (f" ... {len(self.data)} bytes" if len(self.data) > 400 else "")


@dataclass(slots=True)
class Step:
    kind: str  # send expect silent closed drop wait
    who: str = ""
    line: int = 0
    pattern: Pattern = field(default_factory=Pattern)
    loose: bool = False  # in any order with its loose neighbours
    seconds: float = 0.0


@dataclass(slots=True)
class Vector:
    name: str
    path: Path
    versions: list[str]
    rules: list[str] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)
    lines: list[tuple[int, str]] = field(default_factory=list)
    whole_only: bool = False  # its point is how the bytes are cut
    each: tuple[str, list[str]] | None = None

    def unfold(self) -> list[Vector]:
        if self.each is None:
            return [self]
        name, values = self.each
        return [
            replace(
                self,
                name=f"{self.name}-{number}",
                lines=[(at, text.replace(f"${name}", value)) for at, text in self.lines],
                each=None,
            )
            for number, value in enumerate(values, 1)
        ]

    def steps(self, version: str) -> list[Step]:
        return _Compiler(self, version).run()


def load(path: Path) -> list[Vector]:
    vectors: list[Vector] = []
    versions = ["v311", "v5"]
    current: Vector | None = None
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        line = re.sub(r"(^|\s)--(\s.*)?$", "", raw).strip()
        if not line:
            continue
        head, _, rest = line.partition(" ")
        if head == "==":
            current = Vector(f"{path.stem}/{rest.strip()}", path, versions)
            vectors.append(current)
        elif head == "versions:":
            if current is None or not current.lines:
                chosen = rest.split()
                if not set(chosen) <= set(VERSIONS):
                    raise NotationError(f"{path.name}:{number}: {line}")
                if current is None:
                    versions = chosen
                else:
                    current.versions = chosen
            else:
                versions, current = rest.split(), None
        elif current is None:
            raise NotationError(f"{path.name}:{number}: outside a vector: {line}")
        elif head == "rules:":
            current.rules += rest.split()
        elif head == "settings:":
            for pair in rest.split():
                key, _, value = pair.partition("=")
                current.settings[key] = ast.literal_eval(value)
        elif head == "whole-only:":
            current.whole_only = True
        elif head == "each:":
            name, _, values = rest.partition("=")
            current.each = (name.strip(), [value.strip() for value in values.split("|")])
        elif head == "for":
            span, _, text = rest.partition(":")
            first, last = map(int, span.split())
            for index in range(first, last + 1):
                current.lines.append((number, text.strip().replace("%", str(index))))
        else:
            current.lines.append((number, line))
    names = [vector.name for vector in vectors]
    for name in names:
        if names.count(name) > 1:
            raise NotationError(f"{path.name}: two vectors are called {name}")
    return [one for vector in vectors for one in vector.unfold()]


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def _unescape(text: str) -> bytes:
    """`\\xNN` is a byte as it stands, whatever UTF-8 thinks of it."""
    out = bytearray()
    for part in re.split(r"(\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\.)", text[1:-1]):
        if part.startswith("\\x"):
            out.append(int(part[2:], 16))
        elif part.startswith("\\u"):
            out += chr(int(part[2:], 16)).encode()
        elif part.startswith("\\"):
            out += part[1:].encode()
        else:
            out += part.encode()
    return bytes(out)


class _Tokens:
    """One line's bytes and words."""

    def __init__(self, text: str, version: int) -> None:
        self.text = text.rstrip()
        self.at = 0
        self.version = version

    def _next(self) -> tuple[str, str]:
        match = _TOKEN.match(self.text, self.at)
        if match is None or match.lastgroup is None:
            raise NotationError(f"cannot read: {self.text[self.at :]}")
        self.at = match.end()
        return match.lastgroup, match[match.lastgroup]

    @property
    def more(self) -> bool:
        return self.at < len(self.text)

    def pattern(self) -> Pattern:
        """All that is left."""
        out = Pattern()
        while self.more:
            out += self.item()
        return out

    def item(self) -> Pattern:
        return self._item(*self._next())

    def _item(self, kind: str, text: str) -> Pattern:
        if kind == "any":
            return Pattern(b"\x00", frozenset({0}))
        if kind == "hex":
            return Pattern(bytes.fromhex(text))
        if kind == "text":
            return Pattern(_unescape(text))
        if kind == "string":
            raw = _unescape(text)
            return Pattern(len(raw).to_bytes(2, "big") + raw)
        if kind == "number":
            value = int(text[1:])
            if text[0] == "v":
                return Pattern(varint(value))
            return Pattern(value.to_bytes(2 if text[0] == "w" else 4, "big"))
        if kind == "repeat":
            item = self.item()
            count = int(text)
            if not item.any:
                return Pattern(item.data * count)
            out = Pattern()
            for _ in range(count):
                out += item
            return out
        if kind == "open":
            return self._group(text)
        raise NotationError(f"not bytes: {text}")

    def _group(self, opened: str) -> Pattern:
        close = {"{": "}", "p{": "}", "[": "]", "(": ")"}[opened]
        inside = Pattern()
        while True:
            kind, text = self._next()
            if kind == "close":
                if text != close:
                    raise NotationError(f"{opened} closed by {text}")
                break
            inside += self._item(kind, text)
        if opened == "p{" and self.version != V5:
            return Pattern()
        if opened in ("{", "p{"):
            return Pattern(varint(len(inside.data))) + inside
        if opened == "[":
            return Pattern(len(inside.data).to_bytes(2, "big")) + inside
        return inside

    def options(self) -> dict[str, Pattern | str]:
        """`word`, `key=word` and `key=bytes`, to the end of the line."""
        found: dict[str, Pattern | str] = {}
        while self.more:
            kind, text = self._next()
            if kind == "key":
                kind, value = self._next()
                is_word = kind in ("word", "hex", "number")
                found[text] = value if is_word else self._item(kind, value)
            elif kind in ("word", "hex", "number"):
                found[text] = ""
            else:
                raise NotationError(f"not an option: {text}")
        return found

    def word(self) -> str:
        return self._next()[1]


def _bytes(value: Pattern | str | None, default: bytes = b"") -> Pattern:
    if value is None:
        return Pattern(default)
    if isinstance(value, str):
        raise NotationError(f"bytes are wanted, not {value}")
    return value


def _number(options: dict[str, Pattern | str], key: str, default: int = 0, base: int = 10) -> int:
    value = options.get(key)
    return default if value is None else int(str(value), base)


def _packet(first: int, body: Pattern) -> Pattern:
    return Pattern(bytes([first]) + varint(len(body.data))) + body


class _Compiler:
    def __init__(self, vector: Vector, version: str) -> None:
        self.vector = vector
        self.chosen = version
        self.versions: dict[str, int] = {}
        self.out: list[Step] = []
        self.line = 0

    def run(self) -> list[Step]:
        for number, text in self.vector.lines:
            self.line = number
            try:
                self._compile(text)
            except (NotationError, ValueError, KeyError) as error:
                raise NotationError(f"{self.vector.path.name}:{number}: {error!r}") from None
        return self.out

    def _version(self, who: str) -> int:
        return self.versions.get(who, VERSIONS[self.chosen])

    def _add(
        self, kind: str, who: str, pattern: Pattern | None = None, *, loose: bool = False
    ) -> None:
        self.out.append(Step(kind, who, self.line, pattern or Pattern(), loose))

    def _compile(self, text: str) -> None:
        if text.startswith("["):
            only, _, text = text[1:].partition("]")
            if self.chosen not in only.split(","):
                return
            text = text.strip()
        who, _, rest = text.partition(" ")
        if who == "wait":
            self.out.append(Step("wait", line=self.line, seconds=float(rest)))
            return
        verb, _, rest = rest.strip().partition(" ")
        tokens = _Tokens(rest, self._version(who))
        loose = verb.endswith("~")
        verb = verb.rstrip("~")
        if verb == ">":
            self._add("send", who, tokens.pattern())
        elif verb == "<":
            self._add("expect", who, tokens.pattern(), loose=loose)
        elif verb in ("silent", "closed", "drop"):
            self._add(verb, who)
        elif verb == "leave":
            self._add("send", who, Pattern(b"\xe0\x00"))
            self._add("closed", who)
        elif verb in ("thrown", "rejected"):
            self._refusal(who, verb, tokens)
        elif verb in ("puback", "pubrec", "pubrel", "pubcomp"):
            self._ack(who, verb, tokens, loose)
        elif verb in ("publish", "gets"):
            self._publish(who, verb, tokens, loose)
        elif verb == "connect":
            self._connect(who, tokens)
        elif verb in ("subscribe", "unsubscribe"):
            self._subscribe(who, verb, tokens)
        else:
            raise NotationError(f"no such verb: {verb}")

    def _refusal(self, who: str, verb: str, tokens: _Tokens) -> None:
        code = int(tokens.word(), 16)
        options = tokens.options()
        if self._version(who) == V5:
            body = bytes([0xE0, 1, code]) if verb == "thrown" else bytes([0x20, 3, 0, code, 0])
            self._add("expect", who, Pattern(body))
        elif "v3" in options:
            self._add("expect", who, Pattern(bytes([0x20, 2, 0, _number(options, "v3", base=16)])))
        self._add("closed", who)

    def _ack(self, who: str, verb: str, tokens: _Tokens, loose: bool) -> None:
        body = int(tokens.word()).to_bytes(2, "big")
        code = _number(tokens.options(), "code", base=16)
        if code and self._version(who) == V5:
            body += bytes([code])
        first = {"puback": 0x40, "pubrec": 0x50, "pubrel": 0x62, "pubcomp": 0x70}[verb]
        self._add("expect", who, _packet(first, Pattern(body)), loose=loose)

    def _publish(self, who: str, verb: str, tokens: _Tokens, loose: bool) -> None:
        topic, payload = tokens.item(), tokens.item()
        options = tokens.options()
        qos = _number(options, "qos")
        first = 0x30 | qos << 1 | ("retain" in options) | ("dup" in options) << 3
        body = topic
        if qos:
            body += Pattern(_number(options, "mid").to_bytes(2, "big"))
        if self._version(who) == V5:
            body += _bytes(options.get("props"), b"\x00")
        body += payload
        self._add("send" if verb == "publish" else "expect", who, _packet(first, body), loose=loose)

    def _connect(self, who: str, tokens: _Tokens) -> None:
        options = tokens.options()
        for name, version in VERSIONS.items():
            if name in options:
                self.versions[who] = version
        version = self._version(who)
        lasting = "lasting" in options
        flags = 0 if lasting or options.get("clean") == "0" else 2
        body = Pattern(b"\x00\x06MQIsdp" if version == V31 else b"\x00\x04MQTT")
        tail = _bytes(options.get("id"), len(who).to_bytes(2, "big") + who.encode())
        if "will" in options:
            flags |= 4 | _number(options, "willqos") << 3 | ("willretain" in options) << 5
            tail += _bytes(options["will"])
        for key, flag in (("user", 0x80), ("password", 0x40)):
            if key in options:
                flags |= flag
                tail += _bytes(options[key])
        body += Pattern(bytes([version, flags]) + _number(options, "keep").to_bytes(2, "big"))
        if version == V5:
            body += _bytes(
                options.get("props"), b"\x05\x11\x00\x00\x0e\x10" if lasting else b"\x00"
            )
        self._add("send", who, _packet(0x10, body + tail))
        present = bytes(["present" in options and version != V31, 0])
        if version == V5:
            properties = _bytes(options.get("ack"), b"\x0b" + DEFAULT_CONNACK_PROPERTIES)
            self._add("expect", who, _packet(0x20, Pattern(present) + properties))
        else:
            self._add("expect", who, Pattern(b"\x20\x02" + present))

    def _subscribe(self, who: str, verb: str, tokens: _Tokens) -> None:
        topic = tokens.item()
        options = tokens.options()
        v5 = self._version(who) == V5
        mid = Pattern(_number(options, "mid", 1000).to_bytes(2, "big"))
        body = mid + (_bytes(options.get("props"), b"\x00") if v5 else Pattern()) + topic
        none = Pattern(b"\x00") if v5 else Pattern()
        if verb == "subscribe":
            flags = _number(options, "opts", _number(options, "qos"), 16)
            self._add("send", who, _packet(0x82, body + Pattern(bytes([flags]))))
            code = Pattern(bytes([_number(options, "code", flags & 3, 16)]))
            self._add("expect", who, _packet(0x90, mid + none + code))
        else:
            self._add("send", who, _packet(0xA2, body))
            code = Pattern(bytes([_number(options, "code", 0, 16)])) if v5 else Pattern()
            self._add("expect", who, _packet(0xB0, mid + none + code))
