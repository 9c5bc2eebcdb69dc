"""The tables of columns in docs/columns.md and docs/run_folder.md, made of the schemas themselves.

python -m tests.support.runs.column_tables     # writes them anew
"""

from pathlib import Path

import pyarrow as pa

from analysis.capacity import window_table
from analysis.rows import latency_columns, time_series

DOCUMENTS = Path(__file__).parents[3] / "docs"
PAGES = {
    "columns.md": ("requests", "windows"),
    "run_folder.md": ("timeseries", "clients", "power"),
}
SCHEMAS = {
    "requests": latency_columns.FILE,
    "windows": window_table.WINDOWS,
    "timeseries": time_series.SERVER,
    "clients": time_series.CLIENTS,
    "power": time_series.POWER,
}


def document(page: str) -> str:
    """The page with the tables as they should be."""
    text = (DOCUMENTS / page).read_text()
    for name in PAGES[page]:
        start = text.index(f"<!-- {name} -->\n") + len(f"<!-- {name} -->\n")
        text = text[:start] + table(SCHEMAS[name]) + text[text.index("<!-- end -->", start) :]
    return text


def table(schema: pa.Schema) -> str:
    """A schema as a Markdown table."""
    lines = [f"| `{f.name}` | {kind(f.type)} | {told(f, 'unit')} | {meaning(f)} |" for f in schema]
    return "\n".join(["| column | type | unit | meaning |", "|---|---|---|---|", *lines, ""])


def kind(type_: pa.DataType) -> str:
    if pa.types.is_dictionary(type_):
        return "word"
    if pa.types.is_list(type_):
        return f"list of {kind(type_.value_type)}"
    return str(type_)


def meaning(field: pa.Field) -> str:
    formula = told(field, "formula")
    return told(field, "doc") + (f": `{formula}`" if formula else "")


def told(field: pa.Field, key: str) -> str:
    return (field.metadata or {}).get(key.encode(), b"").decode()


if __name__ == "__main__":
    for page in PAGES:
        (DOCUMENTS / page).write_text(document(page))
