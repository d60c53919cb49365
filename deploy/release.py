"""Check that a version may be released, and build its source archive and wheel into dist/.

    python deploy/release.py            check, and build
    python deploy/release.py --check    check alone

The version is that of mqtt_broker/version.py. It needs a section of CHANGELOG.md with a date, no
tag of its name, and a working tree without changes. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
# Built by the project's own backend, in this environment: setuptools is in the `dev` extra.
BUILD = """\
import sys
from setuptools import build_meta
kind, folder = sys.argv[1:]
getattr(build_meta, f"build_{kind}")(folder)
"""
PACKAGES = ("mqtt_broker", "sessions", "qos", "iot_sim", "spark_ingest")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="build nothing")
    args = parser.parse_args()
    version = version_of((ROOT / "mqtt_broker" / "version.py").read_text())
    problems = problems_of(version, (ROOT / "CHANGELOG.md").read_text(), tags(), changed())
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    if problems:
        return 1
    if args.check:
        print(f"release: {version} may be released")
        return 0
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for name in build():
        path = DIST / name
        print(f"release: {path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    return 0


def version_of(text: str) -> str:
    found = re.search(r'__version__: Final = "([^"]+)"', text)
    if found is None:
        raise SystemExit("release: mqtt_broker/version.py has no version")
    return found[1]


def problems_of(version: str, changes: str, tags: set[str], changed: list[str]) -> list[str]:
    """Why this version may not be released; nothing if it may."""
    found = []
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        found.append(f"version {version} is not MAJOR.MINOR.PATCH")
    headings = re.findall(r"^## (.+)$", changes, re.MULTILINE)
    wanted = re.compile(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)")
    if not any(wanted.fullmatch(heading) for heading in headings):
        found.append(f'CHANGELOG.md has no section "## {version} (YYYY-MM-DD)"')
    if f"v{version}" in tags:
        found.append(f"the tag v{version} exists: set the next version in mqtt_broker/version.py")
    if changed:
        found.append(f"files are not committed: {', '.join(changed[:5])}")
    return found


def git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def tags() -> set[str]:
    return set(git("tag"))


def changed() -> list[str]:
    return [line[3:] for line in git("status", "--porcelain")]


def build() -> list[str]:
    """The names of what was built, from a copy of what is committed; each is looked into."""
    copy = ROOT / "build" / "release"
    shutil.rmtree(copy, ignore_errors=True)
    for name in git("ls-files"):
        if not name.startswith("tests/"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    for kind in ("sdist", "wheel"):
        command = [sys.executable, "-c", BUILD, kind, str(DIST)]
        done = subprocess.run(command, cwd=copy, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"release: building the {kind} failed:\n{done.stdout}")
    [archive] = (path.name for path in DIST.glob("*.tar.gz"))
    [wheel] = (path.name for path in DIST.glob("*.whl"))
    with zipfile.ZipFile(DIST / wheel) as opened:
        check(wheel, set(opened.namelist()))
    with tarfile.open(DIST / archive) as opened_archive:
        check(archive, {name.partition("/")[2] for name in opened_archive.getnames()})
    return [archive, wheel]


def check(name: str, files: set[str]) -> None:
    """Stop unless an archive has the packages, with their types."""
    missing = [package for package in PACKAGES if f"{package}/py.typed" not in files]
    if missing:
        raise SystemExit(f"release: {name} lacks py.typed of {', '.join(missing)}")


if __name__ == "__main__":
    sys.exit(main())
