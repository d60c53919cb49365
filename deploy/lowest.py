"""Print the lowest versions that pyproject.toml allows for the broker and two extras."""

from __future__ import annotations

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in (*project["dependencies"], *extras["postgres"], *extras["schemas"]):
        print(re.sub(r"^([a-z0-9-]+)(?:\[[a-z]+\])?>=([0-9.]+).*", r"\1==\2", text))
