"""Every module of the product has tests that one finds: below the folder of its package.

`TESTED_THROUGH` lists the modules that no file there imports, with the tests that drive each
through the interface of its package. A new module gets a test file of its own, or a line there.
"""

from __future__ import annotations

from typing import Final

from tests.house import packages

# Module, without `mqtt_broker.`: the files below `tests` that drive it.
TESTED_THROUGH: Final[dict[str, str]] = {
    # Subcommands are run by their command line.
    "cli.broker": "server/test_process.py",
    "cli.ctl": "cli/test_passwd.py sessions/store/test_transfer.py",
    "cli.ctl_access": "cli/test_passwd.py",
    "cli.demo": "e2e/test_demo.py",
    "cli.passwd": "cli/test_passwd.py",
    "cli.sim": "iot_sim/test_fleet_command.py",
    "cli.spark": "cli/test_spark.py",
    "cli.stream": "cli/test_stream_read.py",
    "cli.stream_change": "cli/test_stream_change.py",
    "cli.stream_export": "cli/test_stream_export.py",
    "cli.stream_read": "cli/test_stream_read.py",
    # Packets of the core are driven by bytes, through `tests.core.peers` and the vectors.
    "codec.decode_connect": "spec/test_connect_cuts.py",
    "core.clients.authorization": "security/test_any_order.py security/test_reload.py",
    "core.clients.events": "core/test_hostile.py server/test_process.py",
    "core.clients.handshake": "spec/test_authentication.py core/test_durable_connack.py",
    "core.clients.lifecycle": "spec/test_vectors.py core/test_durable_wills.py",
    "core.clients.state": "spec/test_vectors.py",
    "core.clients.wills": "spec/test_vectors.py core/test_durable_wills.py",
    "core.inbound.acknowledge": "spec/test_vectors.py core/test_durable.py",
    "core.inbound.admission": "core/test_durable_connack.py",
    "core.inbound.auth": "spec/test_authentication.py",
    "core.inbound.connect": "spec/test_connect_cuts.py spec/test_vectors.py",
    "core.inbound.disconnect": "spec/test_vectors.py",
    "core.inbound.publish": "spec/test_vectors.py core/test_checks.py",
    "core.inbound.subscribe": "spec/test_vectors.py core/test_durable_retained.py",
    "core.routing.dead_letters": "core/test_dead_letters.py",
    "core.routing.retained": "spec/test_vectors.py core/test_durable_retained.py",
    "core.routing.router": "spec/test_vectors.py core/test_message_log.py",
    "core.routing.routes": "spec/test_vectors.py",
    "core.routing.subscriptions": "spec/test_vectors.py core/test_durable_groups.py",
    "core.runtime.backpressure": "core/test_bounds.py core/test_hostile.py",
    "core.runtime.runtime": "core/test_bounds.py server/test_own_mistakes.py",
    "core.sys_topics": "server/test_watchdog.py server/test_process.py",
    # Parts of a session's state are used by whole brokers, in memory and on both databases.
    "sessions.outbound": "spec/test_vectors.py core/test_journal_faults.py",
    "sessions.registry": "spec/test_vectors.py core/test_durable_connack.py",
    "sessions.session": "spec/test_vectors.py sessions/store/test_store_contract.py",
    "sessions.sources": "streams/replay/test_replay.py",
    "sessions.journal.packing": "core/test_journal_faults.py sessions/store/test_parts.py",
    "sessions.store.pager": "sessions/store/test_store_contract.py",
    "sessions.store.row_import": "sessions/store/test_transfer.py",
    # Readers of streams are clients of a whole broker core, or of a simulation of it.
    "streams.replay.consumer_group": "streams/replay/test_consumers.py",
    "streams.replay.dead_letters": "streams/replay/test_consumers.py",
    "streams.replay.notices": "streams/replay/test_replay.py",
    "streams.replay.pages": "streams/replay/test_replay.py streams/replay/test_replay_limits.py",
    "streams.replay.subscription": "streams/replay/test_replay.py",
    # A stream is written to through its partitions, and opened after every kind of crash.
    "streams.remote.parquet_export": "cli/test_stream_export.py",
    "streams.write.recovery": "streams/test_recovery.py streams/test_crash.py",
    "streams.write.retention": "streams/test_retention.py",
    "streams.write.stream": "streams/test_writer.py streams/test_retention.py",
    # Sockets, listeners and pages of HTTP are tested by what a client of theirs sees.
    "client.websocket": "client/test_blocking.py",
    "http_api.log.ranges": "http_api/test_ranges.py",
    "http_api.pages.health": "http_api/test_metrics.py",
    "http_api.request.bodies": "http_api/test_api.py",
    "http_api.service": "http_api/test_process.py",
    "http_api.v1.bans": "http_api/test_bans.py",
    "http_api.v1.streams": "http_api/test_api.py",
    "server.net.context": "server/test_server.py server/test_turn.py",
    "server.net.layered_link": "server/test_tls.py server/test_websocket.py",
    "server.net.listener": "server/test_listeners.py server/test_handshake_queue.py",
    # The security services of a server need a whole one; its tables have documents of their own.
    "server.config.listeners": "server/test_listeners.py",
    "server.config.security": "security/test_server.py security/test_documents.py",
    "server.config.streams": "server/test_streams.py",
    "server.services.auth_methods": "security/test_reload.py",
    "server.services.auth_workers": "security/test_attacks.py",
    "server.services.security": "security/test_server.py",
    "security.files.atomic_files": "cli/test_passwd.py sessions/store/test_syncs.py",
    # Modules that are packages to their users are tested by the folder of the part that they start.
    "in_process": "server/test_in_process.py",
    "testing": "server/test_testing.py",
    "pytest_plugin": "server/test_process.py",
    "lazy": "house/test_public_api.py",
    "version": "docs/test_release.py",
    "server.process.allocator": "server/test_process.py",
    "streams.format.figures": "http_api/test_metrics.py",
    # Devices are made by the name of their model, and clients of the fleet by a whole fleet.
    "iot_sim.devices.clockwork": "iot_sim/test_devices.py iot_sim/test_devices_any_order.py",
    "iot_sim.devices.firmware": "iot_sim/test_devices.py",
    "iot_sim.models.battery_sensor": "iot_sim/test_devices_models.py",
    "iot_sim.models.gateway": "iot_sim/test_devices_models.py",
    "iot_sim.models.machine": "iot_sim/test_devices_models.py",
    "iot_sim.models.meter": "iot_sim/test_devices_models.py",
    "iot_sim.models.tracker": "iot_sim/test_devices_models.py",
    "iot_sim.fleet.client": "iot_sim/test_fleet.py iot_sim/test_planted.py",
    "iot_sim.fleet.connection_ends": "iot_sim/test_fleet.py iot_sim/test_planted.py",
    "iot_sim.fleet.context": "iot_sim/test_fleet.py",
    "iot_sim.fleet.device_runner": "iot_sim/test_fleet.py",
    "iot_sim.fleet.encoding": "iot_sim/test_fleet.py",
    "iot_sim.fleet.fault_injection": "iot_sim/test_fleet.py",
    "iot_sim.fleet.observers": "iot_sim/test_fleet.py iot_sim/test_planted.py",
    "iot_sim.fleet.outbound": "iot_sim/test_fleet.py iot_sim/test_planted.py",
    # Locust patches the standard library, so its users run in a process of their own.
    "iot_sim.locust_users.client": "iot_sim/test_locust.py",
    "iot_sim.locust_users.shape": "iot_sim/test_locust.py",
    "iot_sim.locustfile": "iot_sim/test_locust.py",
    # Jobs of Spark are loaded by their name and run whole; columns are those of their results.
    "spark_ingest.jobs.anomalies": "spark_ingest/test_jobs.py",
    "spark_ingest.jobs.clock": "spark_ingest/test_jobs.py",
    "spark_ingest.jobs.correlate": "spark_ingest/test_jobs.py spark_ingest/test_jobs_limits.py",
    "spark_ingest.jobs.enrich": "spark_ingest/test_jobs.py",
    "spark_ingest.jobs.job": "house/test_public_api.py",
    "spark_ingest.jobs.latest": "spark_ingest/test_jobs.py",
    "spark_ingest.jobs.quality": "spark_ingest/test_jobs.py",
    "spark_ingest.jobs.windows": "spark_ingest/test_jobs_windows.py",
    "spark_ingest.analysis.columns": "spark_ingest/test_jobs.py spark_ingest/test_extremes.py",
    "spark_ingest.analysis.lateness": "spark_ingest/test_jobs_windows.py",
    "spark_ingest.analysis.silence": "spark_ingest/test_jobs_machines.py",
    "spark_ingest.run.spark_session": "spark_ingest/test_running.py",
    # Payloads and the data source are read by what Spark calls.
    "spark_ingest.payloads.column_decoder": "spark_ingest/test_decoding.py",
    "spark_ingest.payloads.row_decoder": "spark_ingest/test_decoding.py",
    "spark_ingest.source.options": "spark_ingest/test_source_reader.py",
    "spark_ingest.source.size_limit": "spark_ingest/test_source_limits.py",
    "spark_ingest.source.task": "spark_ingest/test_source_reader.py",
}


def _imported() -> dict[str, set[str]]:
    """Each module of the product with the folders of `tests` in which a file imports it."""
    found: dict[str, set[str]] = {}
    tests = packages.ROOT / "tests"
    for path in sorted(tests.rglob("*.py")):
        for _, name in packages.imports_of(path):
            found.setdefault(name, set()).add(path.relative_to(tests).parts[0])
    return found


def _modules() -> list[str]:
    """Every module that has code of its own: packages and migrations are run with others."""
    return [
        name
        for name, path in packages.modules().items()
        if path.name != "__init__.py" and "migrations" not in path.parts
    ]


def test_every_module_is_imported_by_a_test_of_its_package_or_listed() -> None:
    imported = _imported()
    findings = []
    for name in _modules():
        module = name.removeprefix("mqtt_broker.")
        folder = module.partition(".")[0]
        has_own = folder in imported.get(name, ())
        if not has_own and module not in TESTED_THROUGH:
            findings.append(f"{module}: no file in tests/{folder} imports it")
        if has_own and module in TESTED_THROUGH:
            findings.append(f"{module}: a file in tests/{folder} imports it: remove its line")
    assert not findings, "\n".join(findings)


def test_the_list_names_modules_and_files_that_exist() -> None:
    known = {name.removeprefix("mqtt_broker.") for name in _modules()}
    tests = packages.ROOT / "tests"
    findings = [f"{module}: no such module" for module in TESTED_THROUGH if module not in known]
    for module, files in TESTED_THROUGH.items():
        if not files:
            findings.append(f"{module}: no test file is named")
        findings += [
            f"{module}: tests/{file} does not exist"
            for file in files.split()
            if not (tests / file).is_file()
        ]
    assert not findings, "\n".join(findings)
