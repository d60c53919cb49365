"""Every module of the product has tests that one finds: below the folder of its package.

`TESTED_THROUGH` lists the modules that no test there imports, with the tests that drive each
through the interface of its package. A new module gets a test file of its own, or a line there.
"""

from __future__ import annotations

from typing import Final

from tests.house import packages
from tests.house.sources import ROOT

# Module, without `mqtt_broker.`: the files below `tests` that drive it.
TESTED_THROUGH: Final[dict[str, str]] = {
    # Rows, which the walks make.
    "core.interfaces.rows": "core/test_inspection.py",
    # The HTTP server imports it when it needs it.
    "http_api.pages.starting": "http_api/pages/test_starting.py",
    # Subcommands are run by their command line.
    "cli.broker": "server/test_process.py",
    "cli.ctl": "cli/test_passwd.py sessions/store/test_transfer.py",
    "cli.ctl_files": "cli/test_passwd.py cli/test_ctl_access.py",
    "cli.ctl_restore": "cli/test_ctl_restore.py",
    "cli.ctl_state": "sessions/store/test_transfer.py",
    "cli.demo": "e2e/test_demo.py",
    "cli.passwd": "cli/test_passwd.py",
    "cli.sim": "iot_sim/run/test_command.py",
    "cli.spark": "cli/test_spark.py",
    "cli.stream": "cli/test_stream_read.py",
    "cli.stream_change": "cli/test_stream_change.py",
    "cli.stream_export": "cli/test_stream_export.py",
    "cli.stream_read": "cli/test_stream_read.py",
    # Packets of the core are driven by bytes, through `tests.core.peers` and the vectors.
    "core.broker": "spec/test_vectors.py core/test_durable.py",
    "codec.decode_connect": "spec/test_connect_cuts.py",
    "core.clients.authorization": "security/test_authenticator_any_order.py "
    "server/services/test_security_reload.py",
    "core.clients.events": "core/test_hostile.py server/test_process.py",
    "core.clients.handshake": "spec/test_authentication.py core/inbound/test_connect_durable.py",
    "core.clients.lifecycle": "spec/test_vectors.py core/clients/test_wills_durable.py",
    "core.clients.state": "spec/test_vectors.py",
    "core.clients.unfinished": "core/test_held_clients.py",
    "core.clients.wills": "spec/test_vectors.py core/clients/test_wills_durable.py",
    "core.inbound.acknowledge": "spec/test_vectors.py core/test_durable.py",
    "core.inbound.admission": "core/inbound/test_connect_durable.py",
    "core.inbound.auth": "spec/test_authentication.py",
    "core.inbound.connect": "spec/test_connect_cuts.py spec/test_vectors.py",
    "core.inbound.disconnect": "spec/test_vectors.py",
    "core.inbound.large_publish": "core/test_slices.py core/test_fairness.py",
    "core.inbound.publish": "spec/test_vectors.py core/interfaces/test_payload_checks.py",
    "core.inbound.subscribe": "spec/test_vectors.py core/routing/test_retained_durable.py",
    "core.routing.dead_letters": "core/routing/test_dead_letters.py",
    "core.routing.distribution": "core/test_slices.py core/test_fairness.py",
    "core.routing.retained": "spec/test_vectors.py core/routing/test_retained_durable.py",
    "core.routing.router": "spec/test_vectors.py core/interfaces/test_message_log.py",
    "core.routing.subscriptions": "spec/test_vectors.py core/routing/test_shared_groups_durable.py",
    "core.runtime.backpressure": "core/test_bounds.py core/test_hostile.py",
    "core.runtime.notices": "core/runtime/test_slow_readers.py",
    # Hosted by nodes on PostgreSQL; SQL, which its tables execute.
    "cluster.content.hosted_broker": "cluster/content/test_hosted_broker.py",
    "cluster.store.state_queries": "cluster/store/test_state_tables.py",
    # Interfaces have no code of their own: these examine who implements them.
    "core.interfaces.owners": "cluster/content/test_hosted_broker.py",
    "core.inbound.tracing": "server/services/test_telemetry.py",
    "core.interfaces.tracing": "server/services/test_telemetry.py",
    "core.interfaces.access": "security/test_authenticator.py",
    "core.interfaces.link": "core/test_read_hints.py",
    "core.interfaces.payload_checks": "core/interfaces/test_payload_checks.py",
    "http_api.request.backups_part": "http_api/v1/test_backups.py",
    "http_api.request.broker_interface": "http_api/pages/test_metrics.py",
    "sessions.journal.participant": "core/interfaces/test_message_log.py",
    # Classes that hold values, or stand for an error.
    "security.files.errors": "security/protection/test_bans.py",
    "sessions.journal.snapshot": "sessions/store/test_store_contract.py",
    # Parts of a session's state are used by whole brokers, in memory and on both databases.
    "sessions.forgotten": "core/test_fairness.py core/test_slices.py",
    "sessions.outbound": "spec/test_vectors.py core/test_journal_faults.py",
    "sessions.registry": "spec/test_vectors.py core/inbound/test_connect_durable.py",
    "sessions.store.postgres_lock": "sessions/store/test_store_outages.py",
    "sessions.store.state_loader": "sessions/store/test_store_contract.py",
    "sessions.session": "spec/test_vectors.py sessions/store/test_store_contract.py",
    "sessions.store.pager": "sessions/store/test_store_contract.py",
    "sessions.store.salvage": "sessions/store/test_store_damage.py fault/test_syncs.py",
    "sessions.store.row_import": "sessions/store/test_transfer.py",
    # Readers of streams are clients of a whole broker core, or of a simulation of it.
    "streams.replay.consumer_group": "streams/replay/test_consumers.py",
    "streams.replay.context": "streams/replay/test_replay.py",
    "streams.replay.service": "streams/replay/test_replay.py",
    "streams.replay.dead_letters": "streams/replay/test_consumers.py",
    "streams.replay.notices": "streams/replay/test_replay.py",
    "streams.replay.pages": "streams/replay/test_replay.py streams/replay/test_replay_limits.py",
    "streams.replay.subscription": "streams/replay/test_replay.py",
    # A stream is written to through its partitions, and opened after every kind of crash.
    "streams.format.segment": "streams/read/test_reader.py streams/write/test_recovery.py",
    "streams.remote.parquet_export": "cli/test_stream_export.py",
    "streams.write.recovery": "streams/write/test_recovery.py streams/test_crash.py",
    "streams.write.retention": "streams/write/test_retention.py",
    "streams.write.stream": "streams/write/test_writer.py streams/write/test_retention.py",
    # Sockets, listeners and pages of HTTP are tested by what a client of theirs sees.
    "http_api.log.ranges": "http_api/log/test_ranges.py",
    "http_api.pages.metrics": "http_api/pages/test_metrics.py http_api/test_documents.py",
    "http_api.pages.health": "http_api/pages/test_metrics.py",
    "http_api.directory": "http_api/v1/test_clients.py http_api/v1/test_retained.py",
    "http_api.request.directory_interface": "http_api/v1/test_clients.py",
    "http_api.request.overview_interface": "http_api/v1/test_overview.py",
    "http_api.service": "http_api/test_process.py",
    "http_api.v1.bans": "http_api/v1/test_bans.py",
    "http_api.v1.streams": "http_api/v1/test_streams.py",
    "http_api.request.changes": "http_api/test_operating.py",
    "http_api.request.operating": "http_api/test_operating.py",
    "http_api.v1.config": "http_api/test_operating.py",
    "http_api.v1.explain": "http_api/test_operating.py",
    "http_api.v1.health_parts": "http_api/test_operating.py",
    "http_api.v1.listeners": "http_api/test_operating.py",
    "http_api.v1.logs": "http_api/test_operating.py",
    "http_api.access_admin": "http_api/test_access_admin.py",
    "http_api.request.access_admin": "http_api/test_access_admin.py",
    "http_api.v1.users": "http_api/test_access_admin.py",
    "security.authentication.password_edit": "cli/test_passwd.py http_api/test_access_admin.py",
    "server.config.acl_edit": "http_api/test_access_admin.py",
    "server.services.access_changes": "http_api/test_access_admin.py",
    "http_api.operating": "http_api/test_operating.py",
    "server.net.certificate_ends": "http_api/test_operating.py",
    "server.net.context": "server/test_server.py server/process/test_turn.py",
    "server.net.event_loop": "server/test_server.py",
    "server.process.descriptors": "server/test_descriptors.py",
    "server.process.turn": "server/process/test_turn.py server/test_own_mistakes.py",
    "server.services.streams": "server/services/test_streams.py",
    "server.net.layered_link": "server/net/test_tls.py server/net/test_websocket.py",
    # Threads that hash passwords are seen under attack.
    "server.services.auth_workers": "security/test_attacks.py",
    "server.services.secret_files": "server/services/test_file_modes.py",
    # Loaded with what they serve, or by the system.
    "lazy": "house/test_public_api.py",
    "server.process.allocator": "server/test_process.py",
    "streams.format.figures": "http_api/pages/test_metrics.py",
    # Devices are made by the name of their model, and clients of the fleet by a whole fleet.
    "iot_sim.devices.device_model": "iot_sim/devices/test_device.py",
    "iot_sim.models.environment": "iot_sim/models/test_models.py",
    "iot_sim.run.process": "iot_sim/fleet/test_fleet.py",
    "iot_sim.run.processes": "iot_sim/run/test_command.py iot_sim/fleet/test_tls.py",
    "iot_sim.devices.scheduled_device": "iot_sim/devices/test_device.py "
    "iot_sim/devices/test_any_order.py",
    "iot_sim.devices.thing": "iot_sim/devices/test_deprecated_names.py",
    "iot_sim.models.battery_sensor": "iot_sim/models/test_models.py",
    "iot_sim.models.gateway": "iot_sim/models/test_models.py",
    "iot_sim.models.machine": "iot_sim/models/test_models.py",
    "iot_sim.models.meter": "iot_sim/models/test_models.py",
    "iot_sim.models.tracker": "iot_sim/models/test_models.py",
    "iot_sim.fleet.client": "iot_sim/fleet/test_fleet.py iot_sim/test_planted.py",
    "iot_sim.fleet.context": "iot_sim/fleet/test_fleet.py",
    "iot_sim.fleet.device_runner": "iot_sim/fleet/test_fleet.py",
    "iot_sim.fleet.fault_injection": "iot_sim/fleet/test_fleet.py",
    "iot_sim.fleet.observers": "iot_sim/fleet/test_fleet.py iot_sim/test_planted.py",
    "iot_sim.fleet.outbound": "iot_sim/fleet/test_fleet.py iot_sim/test_planted.py",
    # Locust patches the standard library, so its users run in a process of their own.
    "iot_sim.locust_users.client": "iot_sim/locust_users/test_locust.py",
    "iot_sim.locust_users.shape": "iot_sim/locust_users/test_locust.py",
    "iot_sim.locustfile": "iot_sim/locust_users/test_locust.py",
    # Jobs of Spark are loaded by their name and run whole; columns are those of their results.
    "spark_ingest.jobs.anomalies": "spark_ingest/jobs/test_jobs.py",
    "spark_ingest.jobs.clock": "spark_ingest/jobs/test_jobs.py",
    "spark_ingest.jobs.correlate": "spark_ingest/jobs/test_jobs.py "
    "spark_ingest/jobs/test_limits.py",
    "spark_ingest.jobs.enrich": "spark_ingest/jobs/test_jobs.py",
    "spark_ingest.jobs.job": "house/test_public_api.py",
    "spark_ingest.jobs.latest": "spark_ingest/jobs/test_jobs.py",
    "spark_ingest.jobs.quality": "spark_ingest/jobs/test_jobs.py",
    "spark_ingest.jobs.windows": "spark_ingest/jobs/test_windows.py",
    "spark_ingest.analysis.columns": "spark_ingest/jobs/test_jobs.py spark_ingest/test_extremes.py",
    "spark_ingest.run.spark_session": "spark_ingest/run/test_runner.py",
    # Payloads and the data source are read by what Spark calls.
    "spark_ingest.payloads.columns": "spark_ingest/source/test_data_source.py",
    "spark_ingest.source.losses": "spark_ingest/run/test_runner_losses.py",
    "spark_ingest.payloads.column_decoder": "spark_ingest/payloads/test_decoder.py",
    "spark_ingest.payloads.row_decoder": "spark_ingest/payloads/test_decoder.py",
    "spark_ingest.source.options": "spark_ingest/source/test_data_source.py",
    "spark_ingest.source.size_limit": "spark_ingest/source/test_batch_planning.py",
    "spark_ingest.source.task": "spark_ingest/source/test_data_source.py",
}


def _folder_of(module: str) -> str:
    """The folder below `tests` where the tests of a module stand."""
    return module.removeprefix("mqtt_broker.").rpartition(".")[0].replace(".", "/")


def _imported() -> dict[str, set[str]]:
    """Each module of the product with the folders below `tests` in which a test imports it."""
    found: dict[str, set[str]] = {}
    tests = ROOT / "tests"
    for path in sorted(tests.rglob("test_*.py")):
        for _, name in packages.imports_of(path):
            found.setdefault(name, set()).add(path.parent.relative_to(tests).as_posix())
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
        folder = _folder_of(name) or "."
        has_own = any(
            found == folder or found.startswith(f"{folder}/") for found in imported.get(name, ())
        )
        if not has_own and module not in TESTED_THROUGH:
            findings.append(f"{module}: no test in tests/{folder} imports it")
        if has_own and module in TESTED_THROUGH:
            findings.append(f"{module}: a test in tests/{folder} imports it: remove its line")
    assert not findings, "\n".join(findings)


def test_the_list_names_modules_and_files_that_exist() -> None:
    known = {name.removeprefix("mqtt_broker.") for name in _modules()}
    tests = ROOT / "tests"
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
