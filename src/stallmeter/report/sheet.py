"""Headline, tables and remarks in plain words, from which a terminal and Markdown are written alike."""

from __future__ import annotations

from dataclasses import dataclass

from .markdown import escape


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a head."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: bool = True
    """Whether all columns but the first hold numbers."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """What is shown of a comparison."""

    headline: str
    tables: tuple[Table, ...]
    remarks: tuple[str, ...] = ()


def sheet_to_markdown(sheet: Sheet) -> str:
    """Return a sheet as Markdown."""
    parts = [f"**{escape(sheet.headline)}**", *(_table(table) for table in sheet.tables)]
    if sheet.remarks:
        parts.append("\n".join(f"- {escape(remark)}" for remark in sheet.remarks))
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    rule = ("---", *["---:" if table.numeric else "---"] * (len(table.head) - 1))
    head, *body = (tuple(map(escape, row)) for row in (table.head, *table.rows))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *body))
