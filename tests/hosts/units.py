"""Reads the files that `python -m cluster render systemd` writes, as systemd reads them."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Unit:
    """The lines of a unit's [Service] section, those of one name together; `%i` is the instance."""

    lines: dict[str, list[str]]
    instance: str

    def words(self, name: str) -> list[str]:
        """The words of a line that occurs once."""
        (line,) = self.lines[name]
        return [word.replace("%i", self.instance) for word in shlex.split(line)]

    def service(self, environment: dict[str, str], more: dict[str, str]) -> dict[str, Any]:
        """The unit as `tests.hosts.machine` runs it; `more` is the environment of the tests alone."""
        own = dict(word.split("=", 1) for word in self.words("Environment"))
        assert self.words("Restart") == ["on-failure"]
        return {
            "start": self.words("ExecStart"),
            "checks": [shlex.split(line) for line in self.lines["ExecStartPre"]],
            "environment": {"HOME": "/tmp/home", **environment, **own, **more},
            "restart_s": float(self.words("RestartSec")[0]),
            "files": int(self.words("LimitNOFILE")[0]),
        }


def read_unit(path: Path, instance: str) -> Unit:
    """The unit of one host, whose address is the instance's name."""
    lines: dict[str, list[str]] = {}
    _, _, section = path.read_text().partition("[Service]\n")
    for line in section.partition("\n[")[0].splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            lines.setdefault(name, []).append(value)
    return Unit(lines, instance)


def read_environment(path: Path) -> dict[str, str]:
    """The variables of an EnvironmentFile."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(shlex.split(line)[0].split("=", 1) for line in lines)
