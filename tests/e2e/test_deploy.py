"""What stands in deploy/, held against the program: commands, options, paths, ports, files."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from mqtt_broker.cli.commands import COMMANDS
from mqtt_broker.server.config.config import DEFAULT_HTTP, Config, load
from mqtt_broker.server.config.listeners import DEFAULT_PORTS
from tests.core.peers import publish, subscribe
from tests.server.broker_process import Process, refused
from tests.server.transports import connected, over_tls

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
yaml: Any = pytest.importorskip("yaml")

if not DEPLOY.exists():
    pytest.skip("no deploy/ beside these tests", allow_module_level=True)


def parsed(words: list[str]) -> argparse.Namespace:
    """The command line as `fleetmq` reads it; what it does not know ends the test."""
    module = importlib.import_module(COMMANDS[words[0]].module)
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    module.add_arguments(parser)
    return parser.parse_args(words[1:])


# The systemd unit.


def unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "fleetmq.service").read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_the_unit_is_what_systemd_takes(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    text = (DEPLOY / "fleetmq.service").read_text()
    path = tmp_path / "fleetmq.service"  # with a command that is there
    path.write_text(text.replace("/usr/local/bin/fleetmq", sys.executable))
    done = subprocess.run(
        [analyze, "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_the_unit_starts_a_broker(tmp_path: Path) -> None:
    """Its command, with a configuration of ours; and what it relies on is what the broker does."""
    found = unit()
    words = shlex.split(found["ExecStart"][0])
    assert Path(words[0]).name == "fleetmq"
    args = parsed(words[1:])
    assert args.config == f"/etc/{found['ConfigurationDirectory'][0]}/fleetmq.toml"
    assert args.data_dir == f"/var/lib/{found['StateDirectory'][0]}"
    assert found["Type"] == ["notify"]
    assert int(found["WatchdogSec"][0]) >= 10
    assert int(found["LimitNOFILE"][0]) >= 100_000
    assert found["ExecReload"] == ["kill -HUP $MAINPID"]
    config = tmp_path / "fleetmq.toml"
    config.write_text("port = 0\n")
    options = [str(config) if word == args.config else word for word in words[2:]]
    options = [str(tmp_path / "data") if word == args.data_dir else word for word in options]
    with Process(*options) as broker:
        broker.client("c").sock.close()
        broker.end()
    code, _, errors = refused("--config", str(tmp_path / "missing.toml"))
    assert found["RestartPreventExitStatus"] == [str(code)], errors


# The image.

Stage = list[tuple[str, str]]


def stages() -> dict[str, Stage]:
    """The instructions of each stage by its name."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    found: dict[str, Stage] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        assert word.isupper(), line
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = [("FROM", base)]
        else:
            found[name].append((word, " ".join(rest.split())))
    return found


def only(stage: Stage, word: str) -> list[str]:
    return [rest for one, rest in stage if one == word]


def test_what_is_copied_exists_and_is_all() -> None:
    copied = set()
    for stage in stages().values():
        for rest in only(stage, "COPY"):
            *sources, _ = rest.split()
            if sources[0].startswith("--from="):
                assert sources.pop(0).removeprefix("--from=") in stages()
                continue
            copied |= set(sources)
            assert all((ROOT / source).exists() for source in sources), rest
    text = (DEPLOY / "compile.py").read_text()
    packages = re.findall(r'"(\w+)"', re.findall(r"^PACKAGES = \((.*)\)", text, re.MULTILINE)[0])
    assert copied >= {*packages, "pyproject.toml", "README.md", "LICENSE", "deploy/compile.py"}


def test_extras_exist() -> None:
    known = set(PROJECT["optional-dependencies"])
    named = set()
    for stage in stages().values():
        for rest in only(stage, "RUN"):
            for extras in re.findall(r'"\.\[([\w,]+)\]"', rest):
                named |= set(extras.split(","))
    assert {"build", "postgres", "spark"} <= named <= known


def test_an_image_is_compiled_or_not_built() -> None:
    for name in ("build", "build-spark"):
        [command] = [run for run in only(stages()[name], "RUN") if "pip install" in run]
        assert "deploy/compile.py --require" in command
        assert "-c deploy/constraints.txt" in command


@pytest.mark.parametrize("name", ["broker", "spark"])
def test_nobody_runs_as_root(name: str) -> None:
    stage = stages()[name]
    user = only(stage, "USER")[-1]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    made = [rest for rest in only(stage, "RUN") if f"--uid {user.partition(':')[0]} " in rest]
    assert made, "the user is made"
    assert list(stages())[-1] == "broker", "what is built when nothing is said"


def test_the_image_says_who_may_come_in_or_ends() -> None:
    """Its own command; the ports it exposes are the ones that are served."""
    stage = stages()["broker"]
    entry, command = (json.loads(only(stage, word)[-1]) for word in ("ENTRYPOINT", "CMD"))
    assert entry == ["fleetmq"]
    args = parsed(command)
    environment = dict(pair.split("=", 1) for pair in only(stage, "ENV")[0].split())
    assert environment["FLEETMQ_DATA_DIR"] in only(stage, "VOLUME")
    ours = {key: text for key, text in environment.items() if key.startswith("FLEETMQ_")}
    code, _, errors = refused(*command[1:], "--check", env=ours)
    assert code == 2
    assert "allow-anonymous" in errors
    config = load(None, {**ours, "FLEETMQ_ALLOW_ANONYMOUS": "true"}, {"host": args.host})
    assert config.data_dir == environment["FLEETMQ_DATA_DIR"]
    ports = {*DEFAULT_PORTS.values(), DEFAULT_HTTP.port}
    assert {int(port) for port in only(stage, "EXPOSE")[0].split()} == ports
    assert config.endpoints[0].port in ports


def test_compose_waits_until_the_broker_is_ready(compose: dict[str, Any]) -> None:
    """The image's own check is for supervisors: it is content with a broker that starts."""
    assert "/readyz" in compose["services"]["broker"]["healthcheck"]["test"][-1]


def test_the_health_check_sees_health() -> None:
    rest = only(stages()["broker"], "HEALTHCHECK")[0]
    words = json.loads(rest[rest.index("CMD") + 4 :])
    assert words[0] == "python"
    with Process("--port", "0", env={"FLEETMQ_HTTP": "127.0.0.1:0"}) as broker:
        assert broker.process.stdout is not None
        port = broker.process.stdout.readline().rpartition(":")[2].strip(" /\n")
        check = [sys.executable, *[word.replace("8080", port) for word in words[1:]]]
        assert f":{port}/healthz" in check[-1]
        assert subprocess.run(check, check=False).returncode == 0
        broker.end()
    done = subprocess.run(check, capture_output=True, check=False)
    assert done.returncode != 0, "nobody is there any more"


# Compose.


@pytest.fixture
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def compose_config(environment: dict[str, str]) -> Config:
    ours = {key: value for key, value in environment.items() if key.startswith("FLEETMQ_")}
    return load(str(DEPLOY / "compose.toml"), ours, {})


def test_compose_is_what_docker_takes() -> None:
    docker = shutil.which("docker")
    command = [docker or "docker", "compose"]
    if (
        docker is None
        or subprocess.run([*command, "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("there is no docker compose")
    done = subprocess.run(
        [*command, "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"],
        env={**os.environ, "POSTGRES_PASSWORD": "p", "FLEETMQ_HTTP_TOKEN": "t"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_compose_builds_what_is_there(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"broker", "postgres", "spark"}
    for service in compose["services"].values():
        if "build" in service:
            build = service["build"]
            context = (DEPLOY / build["context"]).resolve()
            assert context == ROOT
            assert (context / build["dockerfile"]).exists()
            assert build["target"] in stages()
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists()
            else:
                assert source in compose["volumes"]
        for other, what in service.get("depends_on", {}).items():
            assert what["condition"] == "service_healthy"
            image = compose["services"][other]
            assert "healthcheck" in image or only(stages()[image["build"]["target"]], "HEALTHCHECK")


def test_the_broker_of_compose(compose: dict[str, Any]) -> None:
    broker = compose["services"]["broker"]
    args = parsed(broker["command"])
    mounted = [volume.split(":") for volume in broker["volumes"]]
    assert [parts[0] for parts in mounted if parts[1] == args.config] == ["./compose.toml"]
    config = compose_config(broker["environment"])
    assert config.data_dir in [parts[1] for parts in mounted]
    assert config.database_url.endswith("@postgres/fleetmq")
    assert config.http is not None
    served = {*(one.port for one in config.endpoints), config.http.port}
    for port in broker["ports"]:
        host, outside, inside = port.split(":")
        assert host == "127.0.0.1", "only this machine, as everybody is let in"
        assert int(outside) == int(inside)
        assert int(inside) in served


def test_the_spark_job_of_compose(compose: dict[str, Any]) -> None:
    broker, spark = compose["services"]["broker"], compose["services"]["spark"]
    config = compose_config(broker["environment"])
    entry = json.loads(only(stages()["spark"], "ENTRYPOINT")[-1])
    assert entry == ["fleetmq", "spark"]
    args = parsed([*entry[1:], *spark["command"]])
    assert config.http is not None
    assert args.log == f"http://broker:{config.http.port}"
    assert args.stream in [stream.name for stream in config.streams]
    assert spark["environment"]["FLEETMQ_HTTP_TOKEN"] == "${FLEETMQ_HTTP_TOKEN}"
    volumes = [volume.split(":")[1] for volume in spark["volumes"]]
    assert any(str(args.checkpoint).startswith(volume) for volume in volumes)


def test_secrets_are_not_in_the_files(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for key, value in service.get("environment", {}).items():
            if "PASSWORD" in key or "TOKEN" in key:
                assert value.startswith("${"), key


# Certificates for trying out.


def certs(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEPLOY / "certs.py"), str(folder), *options],
        capture_output=True,
        text=True,
        check=False,
    )


def test_certificates_made_here_serve(tmp_path: Path) -> None:
    """A broker with mutual TLS takes the clients that were made, but for the revoked one."""
    folder = tmp_path / "certs"
    assert certs(folder, "--client", "good", "--client", "bad", "--revoke", "bad").returncode == 0
    assert {path.name for path in folder.glob("*.key")} == {
        "ca.key", "server.key", "good.key", "bad.key",
    }  # fmt: skip
    assert {os.stat(path).st_mode & 0o077 for path in folder.glob("*.key")} == {0}
    config = tmp_path / "broker.toml"
    text = re.findall(r"^    (\[\[.*\n    tls.*)$", (DEPLOY / "certs.py").read_text(), re.MULTILINE)
    config.write_text(text[0].replace("    ", "").replace("DIR", str(folder)) + "\nport = 0\n")
    ca = str(folder / "ca.pem")
    with Process("--config", str(config)) as broker:
        port = broker.addresses[0][1]
        good = (str(folder / "good.pem"), str(folder / "good.key"))
        with over_tls(port, ca, good) as client:
            connected(client).send(subscribe(5, "a"), publish("a", b"x"))
            assert client.packet()[0] == 0x90
            assert client.packet().endswith(b"x")
        bad = (str(folder / "bad.pem"), str(folder / "bad.key"))
        with pytest.raises(OSError), over_tls(port, ca, bad) as client:
            connected(client)
        assert "revoked" in broker.wait_for("refused, certificate")
        broker.end()


def test_certificates_made_here_pass_strict_verification(tmp_path: Path) -> None:
    """Python 3.13 verifies strictly by default, and OpenSSL 3.6 holds lists to RFC 5280 then."""
    assert certs(tmp_path, "--client", "one").returncode == 0
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    key = authority.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key)
    for name in ("ca", "server", "one"):
        found = x509.load_pem_x509_certificate((tmp_path / f"{name}.pem").read_bytes())
        assert (
            found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
            == identifier
        )
    for number in (1, 2):
        crl = x509.load_pem_x509_crl((tmp_path / "crl.pem").read_bytes()).extensions
        assert crl.get_extension_for_class(x509.AuthorityKeyIdentifier).value == identifier
        assert crl.get_extension_for_class(x509.CRLNumber).value.crl_number == number
        assert certs(tmp_path, "--revoke", "one").returncode == 0


def test_a_second_run_adds_and_revokes(tmp_path: Path) -> None:
    assert certs(tmp_path, "--client", "one").returncode == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert certs(tmp_path, "--client", "two", "--revoke", "one").returncode == 0
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"two.pem", "two.key", "crl.pem"}


@pytest.mark.parametrize("options", [("--client", "../x"), ("--revoke", "x"), ("--client", "ca")])
def test_what_cannot_be_made(tmp_path: Path, options: tuple[str, str]) -> None:
    done = certs(tmp_path, *options)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("certs.py: error: ")
