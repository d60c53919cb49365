"""A stream that is written to: its partitions, its settings, and the ends for readers.

The event loop may use only `partitioner` and `times`, which do not touch files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqtt_broker.streams.format import committed, file_names
from mqtt_broker.streams.format.batch import seed_of
from mqtt_broker.streams.format.disk import Disk
from mqtt_broker.streams.format.errors import WrongEpoch
from mqtt_broker.streams.format.event_times import EventTimes
from mqtt_broker.streams.format.offsets import Offsets
from mqtt_broker.streams.format.partitioning import Partitioner, PartitionFunctions
from mqtt_broker.streams.format.segment import PartitionFiles
from mqtt_broker.streams.format.stream_settings import StreamSettings
from mqtt_broker.streams.write.partition import Partition
from mqtt_broker.streams.write.recovery import Recovery, Report


class Stream:
    """A stream of a log that is written to."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        settings: StreamSettings,
        partitions: list[Partition],
        functions: PartitionFunctions,
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.settings = settings
        self.partitions = partitions
        self._functions = functions
        self.partitioner = Partitioner(settings.partition_by, settings.partitions, functions)
        self.times = EventTimes(settings.event_time, settings.sent_time)
        self.is_deleted = False
        self.appended = 0  # messages taken since it was opened
        self.refused = 0  # messages refused because too many waited
        self._committed = committed.Writer(
            disk, directory / file_names.COMMITTED, settings.partitions
        )
        self._is_shown = False  # whether the file has the committed ends

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: Path,
        recorded: Offsets | None,
        report: Report,
        *,
        functions: PartitionFunctions,
        has_journal: bool,
        salvage: bool,
    ) -> Stream:
        """Open a stream. `recorded` are its ends in the journal.

        A journal without them has no commit of this stream; then the `committed` file is used.
        """
        settings = StreamSettings.read(directory)
        shown = committed.peek(directory / file_names.COMMITTED)
        if shown is not None and (
            shown.epoch != settings.epoch or len(shown.ends) != settings.partitions
        ):
            shown = None
        if recorded is not None and recorded.epoch != settings.epoch:
            recorded = None  # of a stream of this name that was deleted
        known = recorded.ends if recorded is not None else (0,) * settings.partitions
        if recorded is None and has_journal:
            recorded = shown
        partitions = []
        for number in range(settings.partitions):
            files = PartitionFiles(
                settings.name,
                number,
                directory / file_names.partition(number),
                seed_of(settings.epoch, number),
            )
            opened = Recovery(disk, files, report, salvage=salvage).open(
                recorded.ends[number] if recorded else None, shown.ends[number] if shown else None
            )
            partitions.append(Partition(disk, files, settings, opened))
            if has_journal:
                partitions[-1].recorded = known[number]
        stream = cls(disk, directory, settings, partitions, functions)
        stream.show()
        return stream

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def epoch(self) -> str:
        return self.settings.epoch

    @property
    def takes_frames(self) -> bool:
        """Tell whether runs may stay encoded: payloads are not needed before the write."""
        return not (self.times.is_wanted or self.partitioner.splits_runs)

    def ends(self) -> Offsets:
        """Return the ends that are written and, once synced, on disk."""
        return Offsets(self.epoch, tuple(partition.end for partition in self.partitions))

    def committed(self) -> Offsets:
        return Offsets(self.epoch, tuple(partition.committed for partition in self.partitions))

    def commit(self, ends: Offsets) -> None:
        """Let readers read up to these ends: the records before them are safe."""
        if ends.epoch != self.epoch:
            raise WrongEpoch(self.name, ends.epoch, self.epoch)
        for partition, end in zip(self.partitions, ends.ends, strict=True):
            assert partition.committed <= end <= partition.end
            partition.committed = end
        self._is_shown = False
        self.show()

    def record(self, ends: Offsets) -> None:
        """Note that the journal has these ends."""
        for partition, end in zip(self.partitions, ends.ends, strict=True):
            partition.recorded = end

    @property
    def is_recorded(self) -> bool:
        return all(partition.recorded == partition.end for partition in self.partitions)

    def show(self) -> None:
        """Write the committed ends for readers. They stay committed even if this raises."""
        if not self._is_shown:
            self._committed.write(self.committed())
            self._is_shown = True

    def change(self, changes: dict[str, Any]) -> None:
        """Change settings, on disk first."""
        settings = self.settings.changed(**changes)
        partitioner = Partitioner(
            settings.partition_by, settings.partitions, self._functions, self.partitioner.failures
        )
        self._disk.replace(self.directory / file_names.METADATA, settings.text().encode())
        self.settings = settings
        self.partitioner = partitioner
        self.times = EventTimes(settings.event_time, settings.sent_time)
        for partition in self.partitions:
            partition.follow(settings)

    def mark_deleted(self) -> None:
        self.is_deleted = True
        self._committed.write_deleted()

    def close(self) -> None:
        for partition in self.partitions:
            partition.close()
        self._committed.close()
