"""Read the configuration again while the broker runs, and put its live keys in force.

`server.config.live_keys` says which keys are live. The others are reported as changed, and hold
after a restart; so do they when the file is read the next time. Listeners are opened, changed and
closed by `listener_service`. The security tables are the business of `services.security`, which
watches the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mqtt_broker.server.config.changes import (
    ConfigChange,
    ListenerOutcome,
    are_listeners_live,
    changes_between,
    have_listeners_changed,
    with_listeners,
    with_live_keys,
    with_live_tables,
)
from mqtt_broker.server.config.config import Config
from mqtt_broker.server.config.endpoints import Endpoint
from mqtt_broker.server.process.reload import Changes, Reload


class ConfigReload:
    """The configuration in force, and what of the file waits for a restart."""

    def __init__(
        self,
        config: Config,
        apply: Callable[[Config], None],
        take_up_listeners: Callable[[Sequence[Endpoint]], ListenerOutcome],
    ) -> None:
        """`apply` puts a configuration in force that differs in live keys only;
        `take_up_listeners` opens, changes and closes listeners so that they are these.
        """
        self.config = config
        self._take_up_listeners = take_up_listeners
        self.waiting: tuple[ConfigChange, ...] = ()  # changed, and not in force before a restart
        self._apply = apply

    def watch(self, reload: Reload) -> None:
        """Read the file again when it changes and on SIGHUP, if there is one."""
        source = self.config.source
        if source is not None and source.path:
            reload.add(f"configuration {source.path}", [source.path], self.read_again)

    def read_again(self) -> Changes:
        """Read all sources again and put the live keys in force. A mistake changes nothing."""
        source = self.config.source
        assert source is not None
        read = source.read()
        found = tuple(changes_between(self.config, read))
        if any(change.holds for change in found):
            fresh = with_live_keys(self.config, read)
            self._apply(fresh)
            self.config = fresh
        self.config = with_live_tables(self.config, read)
        self.waiting = tuple(change for change in found if not change.holds)
        if not are_listeners_live(self.config, read) or not have_listeners_changed(
            self.config, read
        ):
            return Changes(found)
        outcome = self._take_up_listeners(read.endpoints)
        self.config = with_listeners(self.config, read, outcome)
        return Changes((*found, *outcome.changes), outcome.failed)
