"""Headline, tables and remarks in plain words, from which a terminal and Markdown are written alike."""

from __future__ import annotations

from dataclasses import dataclass

from . import markdown
from .markdown import escape
from .table import Table


@dataclass(frozen=True, slots=True)
class Overview:
    """What is shown of a comparison."""

    headline: str
    tables: tuple[Table, ...]
    remarks: tuple[str, ...] = ()


def overview_to_markdown(overview: Overview) -> str:
    """Return an overview as Markdown."""
    parts = [f"**{escape(overview.headline)}**", *(table_to_markdown(table) for table in overview.tables)]
    if overview.remarks:
        parts.append("\n".join(f"- {escape(remark)}" for remark in overview.remarks))
    return "\n\n".join(parts) + "\n"


def table_to_markdown(table: Table) -> str:
    """Return a table as Markdown; what a row lacks is empty."""
    return markdown.of_table(table)
