"""A table of figures, each with the bound it is held against."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One figure. `bound` is what it must be, as text; `met` is None where nothing was promised."""

    what: str
    figure: str
    bound: str = ""
    met: bool | None = None


@dataclass
class Table:
    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, value: float, unit: str, *, most: float | None = None, least: float | None = None) -> None:
        """Add a figure, with the most or the least that it may be."""
        bound, met = "", None
        if most is not None:
            bound, met = f"at most {most:g} {unit}", value <= most
        elif least is not None:
            bound, met = f"at least {least:g} {unit}", value >= least
        self.rows.append(Row(what, f"{value:.3g} {unit}".strip(), bound.strip(), met))

    def text(self) -> str:
        width = max((len(row.what) for row in self.rows), default=0)
        marks = {True: "ok", False: "MISSED", None: ""}
        lines = [self.title]
        lines += [f"  {row.what:{width}}  {row.figure:>14}  {row.bound:20} {marks[row.met]}" for row in self.rows]
        return "\n".join(lines + [f"  {note}" for note in self.notes])

    def markdown(self) -> str:
        marks = {True: "yes", False: "**no**", None: ""}
        lines = [f"\n## {self.title}\n", "| what | measured | bound | met |", "|---|---|---|---|"]
        lines += [f"| {row.what} | {row.figure} | {row.bound} | {marks[row.met]} |" for row in self.rows]
        return "\n".join([*lines, "", *self.notes, ""])


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of all lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
