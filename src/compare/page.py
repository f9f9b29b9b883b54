"""The report as one self-contained HTML page, without network access or scripts, in a light and a dark scheme."""

from __future__ import annotations

from html import escape

from . import figures, tables
from .results import Results, sentences

_CSS = """
:root { color-scheme: light dark; --ink: light-dark(#1c1e21, #e4e6ea); --soft: light-dark(#5c6370, #a2a9b4);
  --line: light-dark(#d9dce1, #3a3f47); --ground: light-dark(#ffffff, #17191d); --card: light-dark(#f5f6f8, #20242a); }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 62rem;
  margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.question { color: var(--soft); margin-top: .2rem; font-size: 1.05rem; }
.answer { background: var(--card); border-left: 4px solid #3b7dd8; padding: .8rem 1.1rem .8rem 2rem;
  border-radius: .3rem; }
.note { border-left: 4px solid #d9541e; background: var(--card); padding: .5rem 1.1rem .5rem 2rem; border-radius: .3rem;
  overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
td:first-child { font-weight: 600; }
svg { max-width: 100%; height: auto; }
pre { background: var(--card); padding: .8rem 1rem; border-radius: .3rem; overflow-x: auto; font-size: .84rem; }
.caption { color: var(--soft); font-size: .88rem; margin-top: .2rem; }
"""


def html(results: Results, command: str) -> str:
    """Write the report as an HTML page.

    Args:
        results: those of `collect`.
        command: the command line that repeats the comparison.
    """
    plan = results.plan
    said = "".join(f"<li>{escape(text)}</li>" for text in sentences(results))
    notes = "".join(f"<li>{escape(note)}</li>" for note in results.notes)
    runs_header, runs_rows = tables.runs(results)
    body = [
        f"<h1>{escape(plan.name)}</h1><p class=question>{escape(plan.question)}</p>",
        f"<ul class=answer>{said}</ul>",
        f"<ul class=note>{notes}</ul>" if notes else "",
        "<h2>Arms</h2>" + _table(tables.arms(results)),
        f"<p class=caption>Mean ± standard deviation over the seeds. Tuning: {escape(plan.tuning)}.</p>",
        f"<h2>Differences from {escape(plan.baseline)}, seed by seed</h2>{figures.forest(results)}",
        "<p class=caption>Point: mean of the paired differences (square where claimed at 5 % after correction); line: "
        "95 % interval; ticks: single seeds.</p>" + _table(tables.differences(results)),
        f"<h2>Learning curves</h2>{figures.curves(results)}",
        "<p class=caption>Mean over the seeds; the band spans the lowest and the highest.</p>",
        f"<h2>Test {results.units.metric.name} against processor time</h2>{figures.cost(results)}",
        "<h2>Settings that differ</h2>" + _table(tables.settings(results)),
        "<h2>Shared by all runs</h2>" + _table(tables.shared(results)),
        f"<h2>How to repeat it</h2><pre>{escape(command)}</pre>",
        "<details><summary>Every run</summary>" + _table((runs_header, runs_rows)) + "</details>",
    ]
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(plan.name)}</title>"
    return f"<!doctype html><html lang=en><head>{head}<style>{_CSS}</style></head><body>{''.join(body)}</body></html>\n"


def _table(table: tables.Table) -> str:
    header, rows = table
    if not rows:
        return "<p class=caption>None.</p>"
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
