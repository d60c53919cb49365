"""The errors of streams: one small tree. Each has its details as fields, and one line of text.

StreamError
+-- Invalid             a setting, a name or an offset that cannot be right
|   +-- UnreadableFile  a file other than a segment that cannot be read
+-- Locked              another process writes here
+-- UnknownStream       no such stream
+-- StreamGone          it was deleted while it was read
+-- UnknownPartition    no such partition
+-- WrongEpoch          offsets of an earlier stream of this name
+-- OffsetGone          retention has removed the records at this offset
+-- OffsetAhead         an offset that is not written yet
+-- EndBeforeStart      a range that ends before it begins
+-- Damaged             data on disk differs from what was written
    +-- CorruptBatch    bytes that are not a batch, or fail their checksum
    +-- MissingSegment  a segment file is missing
    +-- LostTail        the log ends before the end in the journal
    +-- JournalBehind   the log has sealed records that the journal lacks
"""

from __future__ import annotations


class StreamError(Exception):
    """Base class of all errors of streams."""


class Invalid(StreamError):
    """A setting, a name or an offset that cannot be right."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what
        self.why = why


class UnreadableFile(Invalid):
    """A file other than a segment is damaged, or was written by a newer program."""


class Locked(StreamError):
    """Another process writes to this log."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"another process writes here (pid {holder} holds {path})")
        self.path = path
        self.holder = holder


class UnknownStream(StreamError):
    """No stream has this name."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"there is no stream {stream!r}")
        self.stream = stream


class StreamGone(StreamError):
    """The stream was deleted while it was read."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {stream!r} was deleted")
        self.stream = stream


class UnknownPartition(StreamError):
    """The stream has no such partition."""

    def __init__(self, stream: str, partition: str, partitions: int) -> None:
        super().__init__(
            f"stream {stream!r} has no partition {partition}: p0 to p{partitions - 1} exist"
        )
        self.stream = stream
        self.partition = partition
        self.partitions = partitions


class WrongEpoch(StreamError):
    """The offsets belong to an earlier stream of the same name."""

    def __init__(self, stream: str, given: str, actual: str) -> None:
        super().__init__(
            f"these offsets are of another stream {stream!r}: epoch {given}, it has {actual} now"
        )
        self.stream = stream
        self.given = given
        self.actual = actual


class OffsetGone(StreamError):
    """Retention has removed the records at this offset."""

    def __init__(self, stream: str, partition: int, offset: int, earliest: int) -> None:
        super().__init__(
            f"stream {stream!r} p{partition}: offset {offset} is no longer kept, "
            f"the earliest is {earliest}"
        )
        self.stream = stream
        self.partition = partition
        self.offset = offset
        self.earliest = earliest


class OffsetAhead(StreamError):
    """The offset has not been written yet."""

    def __init__(self, stream: str, partition: int, offset: int, end: int) -> None:
        super().__init__(
            f"stream {stream!r} p{partition}: offset {offset} is beyond the end, which is {end}"
        )
        self.stream = stream
        self.partition = partition
        self.offset = offset
        self.end = end


class EndBeforeStart(StreamError):
    """A range ends before it begins."""

    def __init__(self, stream: str, partition: int, start: int, end: int) -> None:
        super().__init__(
            f"stream {stream!r} p{partition}: the end {end} is before the start {start}"
        )
        self.stream = stream
        self.partition = partition
        self.start = start
        self.end = end


class Damaged(StreamError):
    """Data on disk differs from what was written.

    `offset` is the first damaged offset, `until` the first after the damage, or -1 if unknown.
    """

    def __init__(self, stream: str, partition: int, offset: int, until: int, why: str) -> None:
        span = f"offsets {offset} to {until - 1}" if until >= 0 else f"offset {offset} on"
        super().__init__(f"stream {stream!r} p{partition}, {span}: {why}")
        self.stream = stream
        self.partition = partition
        self.offset = offset
        self.until = until
        self.why = why


class CorruptBatch(Damaged):
    """Bytes are not a batch, or do not match their checksum."""

    def __init__(
        self,
        stream: str,
        partition: int,
        offset: int,
        until: int,
        segment: str,
        position: int,
        why: str,
    ) -> None:
        super().__init__(
            stream, partition, offset, until, f"{why}, in {segment} at byte {position}"
        )
        self.segment = segment
        self.position = position


class MissingSegment(Damaged):
    """A segment file is missing."""

    def __init__(self, stream: str, partition: int, offset: int, until: int, segment: str) -> None:
        super().__init__(stream, partition, offset, until, f"{segment} is missing")
        self.segment = segment


class LostTail(Damaged):
    """The log ends before the end that was promised."""

    def __init__(self, stream: str, partition: int, end: int, promised: int) -> None:
        super().__init__(
            stream, partition, end, promised, "the log ends here, but more was promised"
        )
        self.end = end
        self.promised = promised


class JournalBehind(Damaged):
    """The log has more sealed records than the journal knows of."""

    def __init__(self, stream: str, partition: int, end: int, recorded: int) -> None:
        super().__init__(
            stream,
            partition,
            recorded,
            end,
            "the log has more than the journal, which may come from an older backup",
        )
        self.end = end
        self.recorded = recorded
