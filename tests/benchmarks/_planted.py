"""The faults that `planted_faults.py` plants: a row of `planted_faults.csv` is one line of one function."""

import csv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of one function, as it is (`old`) and as a mistake would have it (`new`).

    `where` is MODULE:FUNCTION; a method is CLASS.METHOD. `old` stands exactly once in the function.
    """

    name: str
    where: str
    old: str
    new: str

    @property
    def module(self) -> str:
        """The module that has the function."""
        return self.where.split(":")[0]

    @property
    def function(self) -> str:
        """The function's qualified name."""
        return self.where.split(":")[1]

    @property
    def room(self) -> str:
        """The part of the product."""
        return self.module.split(".")[0]


with Path(__file__).with_name("planted_faults.csv").open(newline="") as table:
    FAULTS = tuple(Fault(**row) for row in csv.DictReader(table))
