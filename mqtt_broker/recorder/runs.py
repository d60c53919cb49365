"""The open runs: the cells that the next equal decision extends.

`Outbound` is a `ClientRuns` and `Route` is a `TopicRuns`, so that the recorder finds what it needs
without a look-up. A client that has only connected takes five words here.
"""

from __future__ import annotations

from typing import Final

from mqtt_broker.recorder.segments import NOBODY, Receivers, Segment
from mqtt_broker.recorder.slow_acks import LEAST_S

RUN_MS: Final = 1_000  # that one cell covers at most
RUN_MAX: Final = 1 << 30  # messages or bytes of one cell
# What became of an attempt to extend a run.
OTHER: Final = 0  # nothing: the next cell begins
EXTENDED: Final = 1
OPENED: Final = 2  # extended, and its cell was up to date until now


class Run:
    """The newest cell of one kind of one client."""

    __slots__ = (
        "began_ms",
        "code",
        "count",
        "generation",
        "is_open",
        "last_at",
        "last_ms",
        "lasted_ms",
        "offset",
        "topic",
    )

    def __init__(self) -> None:
        self.is_open = False  # its cell is behind it
        self.lasted_ms = 0
        self.last_at = 0.0  # as last_ms, in seconds; that of a run whose cell may be behind
        self.generation = 0  # of the segment of its cell; 0: there is none
        self.offset = 0
        self.code = 0
        self.topic = 0  # its number in the segment; 0: several
        self.began_ms = 0
        self.last_ms = 0  # when its last message was received
        self.count = 0

    def begin(
        self,
        segment: Segment,
        offset: int,
        code: int,
        topic: int,
        began_ms: int,
        last_ms: int,
        count: int,
    ) -> None:
        """Begin with a cell that was just written."""
        self.generation = segment.generation
        self.offset = offset
        self.code = code
        self.topic = topic
        self.began_ms = began_ms
        self.last_ms = last_ms
        self.count = count
        self.lasted_ms = 0

    def extend(self, count: int, last_ms: int) -> None:
        """Count more messages, of which the last was received then."""
        self.count += count
        self.last_ms = last_ms

    def extend_open(self, count: int, last_at: float, lasted_ms: int) -> bool:
        """Do the same, and leave the cell behind; True: it was up to date until now."""
        self.count += count
        self.last_at = last_at
        self.lasted_ms = lasted_ms
        was_open, self.is_open = self.is_open, True
        return not was_open

    def begin_open(self, last_at: float) -> None:
        """Keep the time of the last message as it came: it is compared with each that follows."""
        self.last_at = last_at

    def settle(self) -> None:
        """Note that its cell is up to date."""
        self.is_open = False

    def close(self) -> None:
        """Let the next decision begin another run."""
        self.generation = 0


class ClientFlow:
    """The open runs of a client that gets messages which wait, or are acknowledged."""

    __slots__ = (
        "acknowledged",
        "dropped",
        "given",
        "queued",
        "refused",
        "resent",
        "retained",
        "sent",
        "slow_from_s",
    )

    def __init__(self) -> None:
        self.slow_from_s = LEAST_S  # acknowledgements that take so long are looked at
        self.acknowledged = Run()
        self.queued = Run()
        self.sent: Run | None = None
        self.resent: Run | None = None
        self.given: Run | None = None
        self.retained: Run | None = None
        self.dropped: Run | None = None
        self.refused: Run | None = None

    def look_from(self, seconds: float) -> None:
        """Look at acknowledgements that take so long."""
        self.slow_from_s = seconds

    def open_sent(self) -> Run:
        """Return the run of messages sent from the queue."""
        if self.sent is None:
            self.sent = Run()
        return self.sent

    def open_resent(self) -> Run:
        """Return the run of messages sent again."""
        if self.resent is None:
            self.resent = Run()
        return self.resent

    def open_given(self) -> Run:
        """Return the run of messages given to a member of a shared subscription."""
        if self.given is None:
            self.given = Run()
        return self.given

    def open_retained(self) -> Run:
        """Return the run of retained messages that were delivered."""
        if self.retained is None:
            self.retained = Run()
        return self.retained

    def open_dropped(self) -> Run:
        """Return the run of drops."""
        if self.dropped is None:
            self.dropped = Run()
        return self.dropped

    def open_refused(self) -> Run:
        """Return the run of refusals."""
        if self.refused is None:
            self.refused = Run()
        return self.refused

    def close_evidence(self) -> None:
        """Extend no drops and refusals any more: their cells are in another ring."""
        for run in (self.dropped, self.refused):
            if run is not None:
                run.close()


class ClientRuns:
    """A client, as the recorder knows it."""

    __slots__ = (
        "client_id",
        "evident_as",
        "evident_in",
        "flow",
        "recorded_as",
        "recorded_in",
    )

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.recorded_in = 0  # the generation of the segment of traffic
        self.recorded_as = 0  # that it has this number in
        self.evident_in = 0  # the same of evidence; -1: in a ring of its own
        self.evident_as = 0
        self.flow: ClientFlow | None = None

    def open_flow(self) -> ClientFlow:
        """Make the place for open runs."""
        flow = self.flow = ClientFlow()
        return flow

    def number_in(self, segment: Segment) -> int:
        """Return the number of the client in the segment of traffic that is written to."""
        if self.recorded_in != segment.generation:
            self.recorded_in = segment.generation
            self.recorded_as = segment.number_client(self.client_id)
        return self.recorded_as

    def move_evidence(self, place: int, number: int = 0) -> None:
        """Write evidence to another segment, by its generation, or to a ring of its own."""
        self.evident_in, self.evident_as = place, number
        if self.flow is not None:
            self.flow.close_evidence()

    def number_evidence_in(self, segment: Segment) -> int:
        """Return the number of the client in the segment of evidence that is written to."""
        if self.evident_in != segment.generation:
            self.evident_in = segment.generation
            self.evident_as = segment.number_client(self.client_id)
        segment.spend(self.evident_as)
        return self.evident_as


class TopicFigures:
    """The messages published to one topic, and how many there were when a window of time began."""

    __slots__ = (
        "bytes",
        "first_ms",
        "last_ms",
        "messages",
        "previous_messages",
        "previous_ms",
        "topic",
        "window_messages",
        "window_ms",
    )

    def __init__(self, topic: str, now_ms: int) -> None:
        self.topic = topic
        self.messages = 0
        self.bytes = 0
        self.first_ms = self.last_ms = now_ms
        self.window_ms = self.previous_ms = now_ms
        self.window_messages = self.previous_messages = 0

    def count(self, messages: int, size: int, now_ms: int) -> None:
        """Count messages."""
        self.messages += messages
        self.bytes += size
        self.last_ms = now_ms

    def begin_window(self, now_ms: int) -> None:
        """Measure the rate from now on; the window before it counts until this one is over."""
        self.previous_ms, self.previous_messages = self.window_ms, self.window_messages
        self.window_ms, self.window_messages = now_ms, self.messages


class TopicRuns:
    """The newest publication of one topic, to one set of receivers."""

    __slots__ = (
        "began_ms",
        "code",
        "count",
        "counted",
        "counted_size",
        "figures",
        "generation",
        "is_open",
        "lasted_ms",
        "offset",
        "publisher",
        "size",
        "topic",
    )

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.generation = 0  # of the segment of its cell; 0: there is none
        self.offset = 0
        self.publisher: ClientRuns | None = None
        self.code = 0
        self.began_ms = 0
        self.count = 0
        self.size = 0
        self.lasted_ms = 0
        self.is_open = False  # its cell is behind it
        self.counted = 0  # messages and bytes that `figures` has
        self.counted_size = 0
        self.figures: TopicFigures | None = None

    def begin(
        self,
        segment: Segment,
        offset: int,
        publisher: ClientRuns,
        code: int,
        count: int,
        size: int,
        now_ms: int,
        figures: TopicFigures,
    ) -> None:
        """Begin with a cell that was just written."""
        self.generation = segment.generation
        self.offset = offset
        self.publisher = publisher
        self.code = code
        self.began_ms = now_ms
        self.count = count
        self.size = size
        self.counted = self.counted_size = 0
        self.lasted_ms = 0
        self.figures = figures
        self.settle()

    def extend(
        self, segment: Segment, publisher: ClientRuns, count: int, code: int, size: int, now_ms: int
    ) -> int:
        """Count more messages, if they are like the last ones: OTHER, EXTENDED or OPENED."""
        lasted_ms = now_ms - self.began_ms
        if (
            self.generation != segment.generation
            or self.publisher is not publisher
            or self.code != code
            or not 0 <= lasted_ms < RUN_MS
            or self.count + self.size >= RUN_MAX
        ):
            return OTHER
        self.count += count
        self.size += size
        self.lasted_ms = lasted_ms
        if self.is_open:
            return EXTENDED
        self.is_open = True
        return OPENED

    def settle(self) -> None:
        """Note that its cell is up to date, and count its messages by topic."""
        self.is_open = False
        figures = self.figures
        if figures is not None:
            figures.count(
                self.count - self.counted,
                self.size - self.counted_size,
                self.began_ms + self.lasted_ms,
            )
        self.counted = self.count
        self.counted_size = self.size

    def receivers(self) -> Receivers:
        """Describe who gets what is published here."""
        return NOBODY
