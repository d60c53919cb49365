"""One of the processes that load the broker, with a share of the plan's clients.

    python -m tests.fault.load PART PARTS PORT LEDGER SEED PUBLISHERS RATE HAS_LOG

It obeys one-word lines on its standard input (`finish`: publish nothing new; `gather`: all
be here, and stay; the end of the input: stop) and says twice a second, as a line of JSON,
how far it is.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
from pathlib import Path
from typing import Final

from tests.fault import plan
from tests.fault.client import Client, Loop
from tests.fault.ledger import Ledger
from tests.fault.publisher import Publisher, Sending
from tests.fault.taker import Subscriber
from tests.fault.witnesses import Beacon, Mourner, Reader, Renewer, Watcher

_SAY_EVERY_S: Final = 0.25


class Part:
    def __init__(self, loop: Loop, made: plan.Plan, part: int, parts: int) -> None:
        self.loop = loop
        publishers: list[Client] = [Publisher(loop, made, n) for n in range(made.publishers)]
        witnesses: list[Client] = [
            Reader(loop, made), Mourner(loop, made), Watcher(loop, made), Beacon(loop, made),
            Renewer(loop, made),
        ]  # fmt: skip
        takers: list[Client] = [Subscriber(loop, made, taker) for taker in made.takers]
        self.clients = [*publishers, *witnesses, *takers][part::parts]
        for client in self.clients:
            client.come()
        self._input = bytearray()
        loop.selector.register(sys.stdin, selectors.EVENT_READ, self._on_input)
        self._say()

    def _on_input(self, events: int) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            self.loop.is_over = True
        self._input += data
        while b"\n" in self._input:
            word, _, rest = self._input.partition(b"\n")
            self._input = rest
            self._obey(word.decode())

    def _obey(self, word: str) -> None:
        for client in self.clients:
            if word == "finish" and isinstance(client, Publisher):
                client.finish()
            elif word == "gather" and isinstance(client, Subscriber):
                client.gather()
            elif word == "gather" and isinstance(client, Mourner | Renewer):
                client.stay()
            elif word == "gather" and isinstance(client, Beacon):
                client.stay_away()

    def _say(self) -> None:
        takers = [client for client in self.clients if isinstance(client, Subscriber)]
        subscribed = [client for client in self.clients if isinstance(client, Subscriber | Watcher)]
        senders = [client for client in self.clients if isinstance(client, Sending)]
        # One that is away with a message under way comes back with it, if it is waited for.
        mourners = [client for client in senders if isinstance(client, Mourner)]
        said = {
            "sent": sum(client.sent for client in senders),
            "acknowledged": sum(client.acknowledged for client in senders),
            "delivered": sum(client.got for client in takers),
            "settled": all(client.is_settled for client in subscribed),
            "sending": sum(client.is_busy for client in senders if isinstance(client, Publisher)),
            "taking": sum(client.is_busy for client in takers)
            + sum(client.is_busy and client.is_staying for client in mourners),
        }
        os.write(sys.stdout.fileno(), json.dumps(said).encode() + b"\n")
        self.loop.after(_SAY_EVERY_S, self._say)


def main(arguments: list[str]) -> None:
    part, parts, port = map(int, arguments[:3])
    has_log = arguments[7] == "True"
    made = plan.make(int(arguments[4]), int(arguments[5]), float(arguments[6]), has_log=has_log)
    loop = Loop(Ledger(Path(arguments[3])), port)
    Part(loop, made, part, parts)
    loop.run()
    loop.ledger.close()


if __name__ == "__main__":
    main(sys.argv[1:])
