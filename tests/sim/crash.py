"""The same world with a store beneath, in which the broker dies again and again.

A crash takes everything that was not committed, and whatever the kernels had not sent; the
clients live on and come back. Their sessions end and begin anew, their wills come, the process
is stopped for a while and goes on or is killed, the store fails, and hours may pass before the
broker is started again. What has to hold stands in `oracles.ORACLES`.

    python -m tests.sim.crash --seeds 1000 --start 0
    python -m tests.sim.crash --seeds 1000 --without session-gone,group
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from mqtt_broker.codec.constants import V5
from mqtt_broker.codec.packets import SubscriptionRequest
from mqtt_broker.core.broker import Broker
from mqtt_broker.core.restore import items_of, restore
from mqtt_broker.topics.names import matches, split_share
from sessions.journal.journal import Journal, StoredQueue
from sessions.messages.work import SHARE_UNITS, Work
from tests.core.recount import check_bytes
from tests.sessions.store.memory_store import MemoryStore, Page
from tests.sim.client import Client
from tests.sim.ledger import KINDS, WATCHER, Ledger
from tests.sim.oracles import ORACLES, Abandoned, Broken, Oracles
from tests.sim.promises import SLACK_S, Promises
from tests.sim.wire import Wire
from tests.sim.world import GROUPS, World

BEAT_S = 5.0
CRASH_SOON_S = 0.5
DOWNTIME_MAX_S = 7_200.0
WATCHED = ("will/#", "status/#")


class CrashWorld(World):
    client_class = Ledger

    def __init__(self, seed: int, without: Iterable[str] = ()) -> None:
        self.oracles = Oracles(without)
        self.theme = random.Random(f"{seed}/theme").choice(list(KINDS))
        super().__init__(seed)
        self.model = self.promises = Promises(self)
        self._add_watcher()
        self.wires: list[Wire] = []
        self.store = MemoryStore()
        self.crashes = self.pauses = 0
        self.is_paused = False
        self._held: list[Callable[[], None]] = []  # what a stopped process does when it goes on
        self._callers: list[Callable[[], None]] = []  # who connects as soon as it serves
        self._lingers = False
        self._life = 0
        self._doomed = 0  # the life that a planned crash ends
        self.has_parts = seed % 3 == 0  # groups that are too large for one blob
        # A share of work, of which most packets take several: those of two thirds of the worlds.
        share = random.Random(f"{seed}/share").choice([SHARE_UNITS, 1, 30, 200, 2_000, SHARE_UNITS])
        self.work = Work(share, 2 * share)
        self.commit_delay_s = self.rng.choice([0.0, 0.005, 0.2, 1.0])
        self._live()

    def _add_watcher(self) -> None:
        """A client that is told of all wills, and has one session from first to last."""
        watcher = Ledger(self, WATCHER, V5)
        watcher.kind, watcher.will_delay, watcher.has_status = "keeper", None, False
        watcher.wants = {text: SubscriptionRequest(text, 2, retain_handling=2) for text in WATCHED}
        watcher.identifiers = dict.fromkeys(WATCHED, 0)
        self.clients[WATCHER] = watcher

    def _choose_subscriptions(self, client: Client) -> None:
        is_about_groups = self.theme == "groups"
        if self.rng.random() < (0.9 if is_about_groups else 0.3):
            text = GROUPS[1] if is_about_groups else self.rng.choice(GROUPS)
            level = 1 if is_about_groups else self.rng.choice([0, 1, 1, 2])
            client.wants[text] = SubscriptionRequest(text, level)
            client.identifiers[text] = 0
        else:
            super()._choose_subscriptions(client)

    def choose_subscriptions(self, client: Client) -> None:
        self._choose_subscriptions(client)

    # Lives.

    def _live(self) -> None:
        """A broker that begins with what the store has."""
        self._life += 1
        self._lingers = self.is_stopped = self.is_paused = False
        found = self.store.snapshot()
        self.journal = Journal(
            self._submit,
            number=found.last_number,
            last_message=found.last_mid,
            last_session=found.last_sid,
        )
        if self.has_parts:
            self.journal.part_bytes_max = 300
        self.broker = Broker(
            self.settings,
            now=self.now,
            rng=random.Random(self.rng.random()),
            journal=self.journal,
            work=self.work,
        )
        life = self._life
        self.store.start(
            lambda number: self._told(life, self.broker.on_committed, number),
            lambda number: self._told(life, self.broker.on_folded, number),
            self.broker.on_store_state,
        )
        restore(self.broker, found, self.now)
        self.promises.on_restart(found.alive_at, self.broker)
        self.end_turn()
        self._later(BEAT_S, self._beat)
        self._serve_callers()

    def _told(self, life: int, act: Any, number: int) -> None:
        if life == self._life:
            act(number, self.now)
            self.end_turn()

    def _beat(self) -> None:
        self.store.beat(self.now)
        self._later(BEAT_S, self._beat)

    def when_it_serves(self, act: Callable[[], None]) -> None:
        """Dial again and again until somebody listens."""
        self._callers.append(act)

    def _serve_callers(self) -> None:
        callers, self._callers = self._callers, []
        for act in callers:
            self.after(self.rng.random(), act)

    # What the server does around the core.

    def end_turn(self) -> None:
        if self.is_stopped:
            return
        super().end_turn()
        if len(self.journal) and not self._lingers:
            self._lingers = True
            self._later(0.002, self._linger)
        while self.journal.pages_wanted:
            self._ask(self.journal.pages_wanted.pop())
        self.promises.on_committed(self.journal.committed, self.journal.is_settled)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        """Unless the broker dies before; a stopped one does it when it goes on."""
        life = self._life

        def call() -> None:
            if life == self._life:
                if self.is_paused:
                    self._held.append(call)
                else:
                    act()

        self.after(seconds, call)

    def _linger(self) -> None:
        self._lingers = False
        self.journal.flush(self.now)
        self.end_turn()

    def _submit(self, number: int, blob: bytes) -> None:
        self.store.submit(number, blob, self.now)
        self._later(self.rng.random() * self.commit_delay_s, self.store.commit)
        if self.rng.random() < 0.5:
            self._later(self.rng.random() * 2, self.store.fold)

    def _ask(self, owner: StoredQueue) -> None:
        life = self._life

        def on_page(page: Page) -> None:
            if life == self._life:
                owner.on_page(items_of(self.broker, page), self.now)
                self.end_turn()

        self.store.page(
            owner.session_number, owner.page_after, self.rng.choice([1, 3, 100]), 1 << 20, on_page
        )
        self._later(self.rng.random() * 0.1, self.store.answer)

    def wire(self, client: Client) -> Wire:
        wire = super().wire(client)
        self.wires.append(wire)
        return wire

    def lose(self, wire: Wire) -> None:
        if self.is_paused:
            self._held.append(lambda: self.lose(wire))
        else:
            super().lose(wire)

    def _turn(self) -> None:
        if self.is_stopped:
            self._turn_planned = False
        else:
            super()._turn()

    # Faults.

    def crash(self) -> None:
        """Nothing of the process is left; what its kernel has still goes out."""
        self.crashes += 1
        self.promises.on_killed()
        self._life += 1
        self.is_stopped, self.is_paused = True, False
        for wire in self.wires:
            if not wire.is_lost:
                wire.is_closed = wire.is_lost = True
                wire.backlog.clear()
                wire.arrived.clear()
                wire._read_soon()
        self.wires.clear()
        self._ready.clear()
        self._held.clear()
        self.store = self.store.crash()
        downtime_s = self.rng.choice([0.0, 0.0, 0.0, 0.3, 3.0, 30.0, 59.0, 90.0, DOWNTIME_MAX_S])
        if downtime_s:
            self.after(downtime_s, self._live)
        else:
            self._live()

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long, unless somebody kills it meanwhile."""
        self.pauses += 1
        self.is_stopped = self.is_paused = True
        life = self._life
        self.after(seconds, lambda: self._go_on() if life == self._life else None)

    def _go_on(self) -> None:
        if not self.is_paused:
            return
        self.is_stopped = self.is_paused = False
        self.promises.tick()
        self.broker.tick(self.now)
        self.end_turn()
        held, self._held = self._held, []
        for act in held:
            act()
        for wire in self.wires:
            if wire.backlog and not wire.is_closed:
                wire.send_on()
            if wire.arrived:
                self.ready(wire)
        self._serve_callers()

    def _fail_store(self) -> None:
        self.store.fail("disk full")
        self._later(self.rng.choice([0.1, 2.0, 20.0]), self._mend_store)

    def _mend_store(self) -> None:
        self.store.fail("")
        self.store.commit()
        self.store.fold()
        self.store.answer()

    # The play.

    def _act(self, client: Client) -> None:
        chance = self.rng.random()
        if self.is_stopped:
            if self.is_paused and chance < 0.2:
                self.crash()
            elif chance > 0.5:
                client.publish("m/a", self.rng.randrange(3))
        elif self.theme == "groups" and chance > 0.5:
            for _ in range(self.rng.choice([1, 4, 12])):
                client.publish("s/a", 1)
        elif self.theme == "sessions" and chance > 0.85:
            self._return_and_crash(client)
        elif chance < 0.08:
            self.crash()
        elif chance < 0.12:
            self._return_and_crash(client)
        elif chance < 0.15:
            self.pause(self.rng.choice([0.2, 4.0, 30.0, 100.0]))
        elif chance < 0.19 and not self.store.state:
            self._fail_store()
        elif chance < 0.23:
            for session in self.broker.sessions:
                session.outbound.unload(self.journal.folded, 0)
            for group in self.broker.subscriptions.groups.values():
                group.unload(self.journal.folded, 0)
        else:
            super()._act(client)

    def _return_and_crash(self, client: Client) -> None:
        """Soon after it is told what session it has."""
        client.vanish()
        self.after(0.0, client._return)
        self._doomed = self._life
        self._later(self.rng.random() * self.rng.choice([0.05, CRASH_SOON_S]), self.crash)

    def play(self, actions: int = 150) -> None:
        """One world from first to last; Abandoned when a rule that is left out ends it."""
        for client in self.clients.values():
            self.after(self.rng.random(), client._return)
        for _ in range(actions):
            self.run_until(self.now + self.rng.choice([0.0, 0.05, 0.3, 1.0]))
            self._act(self.rng.choice(list(self.clients.values())))
        self._finish_faults()
        try:
            self._drain()
        except AssertionError as error:
            if isinstance(error, Broken):
                raise
            self.oracles.check("rest", False, str(error))
        self.check()

    def _finish_faults(self) -> None:
        """Carry out a crash that is still planned, and start a broker that is down.

        A broker that dies in the drain may stay down for longer than the drain lasts.
        """
        if self._doomed == self._life:
            self.run_until(self.now + CRASH_SOON_S)
        if self.is_stopped:
            self.run_until(self.now + DOWNTIME_MAX_S + 800)

    def check(self) -> None:
        ledgers = [client for client in self.clients.values() if isinstance(client, Ledger)]
        for publisher in ledgers:
            for payload in publisher.acknowledged:
                at, topic, qos = publisher.sent_at[payload]
                if payload:
                    self._check_message(ledgers, publisher, payload, at, topic, qos)
                    self._check_groups(ledgers, payload, at, topic, qos)
        for client in ledgers:
            self._check_once(client)
            for key, payloads in client.order.items():
                if key[1].startswith("m/") and key[2]:
                    self._check_order(client, key, payloads)
        self._check_wills()
        if not self.is_stopped:
            check_bytes(self.broker)

    def _check(self, oracle: str, holds: bool, text: str) -> None:
        self.oracles.check(oracle, holds, text, is_final=True)

    def _check_order(
        self, client: Ledger, key: tuple[str, str, int], payloads: list[bytes]
    ) -> None:
        """First deliveries, of what was first sent when the client was subscribed."""
        name, topic, _ = key
        publisher = self.clients[name]
        assert isinstance(publisher, Ledger)
        begun = [since for text, (since, _) in client.promised.items() if matches(text, topic)]
        serials = [
            int(payload.split()[1])
            for payload in dict.fromkeys(payloads)
            if publisher.sent_at[payload][0] > max(begun, default=self.now)
        ]
        self._check("order", serials == sorted(serials), f"{client.name}: {key} out of order")

    def _check_once(self, client: Ledger) -> None:
        for (generation, payload), count in client.counts.items():
            self._check(
                "once",
                count == 1 or not payload,
                f"{client.name} got {payload!r} {count} times in session {generation}",
            )

    def _check_message(
        self,
        ledgers: list[Ledger],
        publisher: Ledger,
        payload: bytes,
        at: float,
        topic: str,
        qos: int,
    ) -> None:
        for client in ledgers:
            asked = [
                wanted.qos
                for text, (since, wanted) in client.promised.items()
                if since < at and split_share(text) is None and matches(text, topic)
                if not (wanted.no_local and client is publisher)
            ]
            best = min(qos, max(asked, default=0))
            if best:
                count = sum(client.got[topic, payload, level] for level in (0, 1, 2))
                text = f"{client.name} never got {payload!r} ({topic}, {best})"
                self._check("delivered", count > 0, text)

    def _check_groups(
        self, ledgers: list[Ledger], payload: bytes, at: float, topic: str, qos: int
    ) -> None:
        """While a group has a member whose session is stored, what it is dealt is kept."""
        count = sum(client.got[topic, payload, level] for client in ledgers for level in (0, 1, 2))
        for text in GROUPS:
            shared = split_share(text)
            assert shared is not None
            if not matches(shared[1], topic):
                continue
            has_stored = any(
                text in client.promised and client.promised[text][0] < at for client in ledgers
            )
            levels = [min(qos, level) for client in ledgers for name, level in client.shared_qos
                      if name == text]  # fmt: skip
            # QoS 0 is not repeated, and a QoS 2 exchange ends with its member. [MQTT-4.8.2-5]
            ends = any((text, 2) in c.shared_qos and c.generation > 1 for c in ledgers)
            if has_stored and min(levels) and (max(levels) < 2 or not ends):
                self._check("group", count > 0, f"no member of {text} ever got {payload!r}")

    def _check_wills(self) -> None:
        watcher = self.clients[WATCHER]
        assert isinstance(watcher, Ledger)
        for known in self.promises.known.values():
            for case in known.wills:
                since = watcher.promised.get(f"{case.topic.split('/')[0]}/#", (math.inf,))[0]
                if since >= case.heard_at:
                    continue
                name = case.payload.decode()
                count = watcher.counts[watcher.generation, case.payload]
                has_come = any(watcher.got[case.topic, case.payload, qos] for qos in (1, 2))
                came_at = watcher.got_at.get(case.payload, math.inf)
                if came_at < case.due_from - SLACK_S and case.due_from < math.inf:
                    early_s = case.due_from - came_at
                    self._check("will-early", False, f"{name} came {early_s:.1f} s too early")
                    continue
                is_due = case.fate == "sent" and case.is_recorded
                self._check("will-comes", has_come or not is_due, f"{name} never came")
                is_over = case.fate == "cancelled" and not case.group
                self._check("will-cancelled", not (has_come and is_over), f"{name} came")
                self._check("will-once", count <= 1, f"{name} came {count} times")


def play(seed: int, without: Iterable[str] = ()) -> CrashWorld | None:
    """The world, or None when a rule that is left out ended it."""
    world = CrashWorld(seed, without)
    try:
        world.play()
    except Abandoned:
        return None
    return world


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--without", default="", help=f"oracles, of {', '.join(ORACLES)}")
    parser.add_argument("--all", action="store_true", help="go on, and count what each finds")
    args = parser.parse_args()
    without = [name for name in args.without.split(",") if name]
    crashes = abandoned = 0
    found: Counter[str] = Counter()
    begun = time.monotonic()
    for seed in range(args.start, args.start + args.seeds):
        try:
            world = play(seed, without)
        except BaseException as error:
            if not args.all or not isinstance(error, Exception):
                sys.stderr.write(f"seed {seed}:\n")
                raise
            name = error.oracle if isinstance(error, Broken) else type(error).__name__
            if not found[name]:
                sys.stdout.write(f"seed {seed}, {time.monotonic() - begun:.1f} s: {error}\n")
            found[name] += 1
            continue
        abandoned += world is None
        crashes += world.crashes if world is not None else 0
    said = ", ".join(f"{name} {count}" for name, count in found.items()) or "nothing lost"
    sys.stdout.write(f"{args.seeds} seeds ({abandoned} abandoned), {crashes} crashes: {said}\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
