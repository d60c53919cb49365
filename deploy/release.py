"""Check that a version may be released, and build its source archive and wheel into dist/.

    python deploy/release.py            check, and build
    python deploy/release.py --check    only check
    python deploy/release.py --build    only build

The version is that of mqtt_broker/version.py. It needs a section of CHANGELOG.md with a date, no
tag of its name, and a working tree without changes. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
# The project's own backend, in this environment: setuptools is in the `build` extra.
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
PACKAGES = ("mqtt_broker", "sessions", "qos", "iot_sim", "spark_ingest")


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="only check")
    parser.add_argument("--build", action="store_true", help="only build")
    args = parser.parse_args()
    if args.build:
        report(build())
        return 0
    version = version_of((ROOT / "mqtt_broker" / "version.py").read_text())
    problems = problems_of(version, (ROOT / "CHANGELOG.md").read_text(), tags(), changed())
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    if problems:
        return 1
    if args.check:
        print(f"release: version {version} is ready")
        return 0
    report(build())
    return 0


def report(names: list[str]) -> None:
    for name in names:
        path = DIST / name
        print(f"release: {path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def version_of(text: str) -> str:
    found = re.search(r'__version__: Final = "([^"]+)"', text)
    if found is None:
        raise SystemExit("release: mqtt_broker/version.py has no version")
    return found[1]


def problems_of(version: str, changes: str, tags: set[str], changed: list[str]) -> list[str]:
    """Return what prevents the release of this version, and what to do about it."""
    found = []
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        found.append(
            f"mqtt_broker/version.py has version {version}: set it to MAJOR.MINOR.PATCH,"
            " such as 1.2.3"
        )
    headings = re.findall(r"^## (.+)$", changes, re.MULTILINE)
    wanted = re.compile(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)")
    if not any(wanted.fullmatch(heading) for heading in headings):
        heading = f"## {version} ({datetime.date.today().isoformat()})"
        old = next((one for one in headings if one.startswith(version)), "Unreleased")
        found.append(
            f'CHANGELOG.md has no section "{heading}": rename "## {old}" to it, insert an empty'
            ' "## Unreleased" above it, and commit (docs/RELEASING.md, "Making a release")'
        )
    if f"v{version}" in tags:
        found.append(
            f"version {version} is released already: there is a tag v{version}; set the next"
            " version in mqtt_broker/version.py"
        )
    if changed:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        found.append(f"uncommitted files: {', '.join(changed[:5])}{more}; commit or stash them")
    return found


def git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def tags() -> set[str]:
    return set(git("tag"))


def changed() -> list[str]:
    return [line[3:] for line in git("status", "--porcelain")]


def build() -> list[str]:
    """Build the archive and the compiled wheel, and check their contents; return their names."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    copy = ROOT / "build" / "release"
    shutil.rmtree(copy, ignore_errors=True)
    for name in git("ls-files"):
        if not name.startswith("tests/") and (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    command = [sys.executable, "-c", BUILD, str(DIST)]
    done = subprocess.run(command, cwd=copy, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"release: building the archive failed:\n{done.stdout}")
    if subprocess.call([sys.executable, str(ROOT / "deploy" / "compile.py"), "--wheel"]):
        raise SystemExit("release: building the wheel failed")
    [archive] = (path.name for path in DIST.glob("*.tar.gz"))
    [wheel] = (path.name for path in DIST.glob("*.whl"))
    with zipfile.ZipFile(DIST / wheel) as opened:
        check(wheel, set(opened.namelist()))
    with tarfile.open(DIST / archive) as opened_archive:
        check(archive, {name.partition("/")[2] for name in opened_archive.getnames()})
    return [archive, wheel]


def check(name: str, files: set[str]) -> None:
    """Stop if an archive lacks a package or its type marker."""
    missing = [package for package in PACKAGES if f"{package}/py.typed" not in files]
    if missing:
        raise SystemExit(f"release: {name} lacks py.typed of {', '.join(missing)}")


if __name__ == "__main__":
    sys.exit(main())
