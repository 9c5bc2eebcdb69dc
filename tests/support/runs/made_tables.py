"""Tables in the documents that are made of the code: columns of the schemas, reasons of void windows.

python -m tests.support.runs.made_tables     # writes them anew
"""

from pathlib import Path

import pyarrow as pa

from analysis.capacity import window_table
from analysis.capacity.checks import RULES
from analysis.capacity.rules import REASONS
from analysis.rows import metrics, records

DOCUMENTS = Path(__file__).parents[3] / "docs"
PAGES = {
    "columns.md": ("requests", "windows"),
    "time_series.md": ("timeseries", "clients", "power"),
    "exit_codes.md": ("reasons",),
}
SCHEMAS = {
    "requests": metrics.FILE,
    "windows": window_table.WINDOWS,
    "timeseries": records.SERVER,
    "clients": records.CLIENTS,
    "power": records.POWER,
}


def document(page: str) -> str:
    """The page with the tables as they should be."""
    text = (DOCUMENTS / page).read_text()
    for name in PAGES[page]:
        start = text.index(f"<!-- {name} -->\n") + len(f"<!-- {name} -->\n")
        made = table(SCHEMAS[name]) if name in SCHEMAS else reasons()
        text = text[:start] + made + text[text.index("<!-- end -->", start) :]
    return text


def table(schema: pa.Schema) -> str:
    """A schema as a Markdown table."""
    lines = [f"| `{f.name}` | {told(f, 'unit')} | {meaning(f)} |" for f in schema]
    return "\n".join(["| column | unit | meaning |", "|---|---|---|", *lines, ""])


def reasons() -> str:
    """The reasons why a window is void, as a Markdown table with the checks that find them."""
    lines = ["| reason | what happened | what to do | checks |", "|---|---|---|---|"]
    for name, reason in REASONS.items():
        checks = [f"`{rule.name}`" for rule in RULES if rule.reason == name] or ["`valid_windows`"]
        advice = f"{reason.remedy} {reason.on_fast_clock}".strip()
        lines.append(f"| `{name}` | {reason.cause} | {advice} | {', '.join(checks)} |")
    return "\n".join([*lines, ""])


def meaning(field: pa.Field) -> str:
    formula = told(field, "formula")
    return told(field, "doc") + (f": `{formula}`" if formula else "")


def told(field: pa.Field, key: str) -> str:
    return (field.metadata or {}).get(key.encode(), b"").decode()


if __name__ == "__main__":
    for page in PAGES:
        (DOCUMENTS / page).write_text(document(page))
