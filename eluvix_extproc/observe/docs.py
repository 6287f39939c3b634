"""docs/metrics.md from the catalogue: `python -m eluvix_extproc.observe.docs` rewrites it, a test holds it to that."""

from __future__ import annotations

from pathlib import Path

from eluvix_extproc.observe.catalogue import CATALOGUE, Metric

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

_HEAD = """\
# Metrics

<!-- Generated: change eluvix_extproc/observe/catalogue.py, then run `python -m eluvix_extproc.observe.docs`. -->

`GET /metrics` on `admin.listen` answers in the Prometheus text format. Units are seconds, bytes and tokens. Label
values come from closed sets or from the configuration (pool names, model names); request ids, prefix hashes and
strings of clients are never labels. A label is `none` where there is nothing to name: no decision was taken, no
configured model was asked for.

With `server.processes` above 1 each process has metrics of its own, on the port of `admin.listen` plus its number
(9090, 9091, …). Scrape each of them and aggregate over `instance`: counters and histograms with `sum by (…)`,
`eluvix_in_flight` with `sum`, `eluvix_workers` with `max` (every process sees the same fleet).

`process_*` (CPU, memory, open files) are those of prometheus-client.

| metric | type | labels | tells | what to do with it |
|---|---|---|---|---|
"""


def page() -> str:
    return _HEAD + "".join(_row(metric) for metric in CATALOGUE)


def _row(metric: Metric) -> str:
    labels = "<br>".join(
        f"`{label}`" + (f": {', '.join(f'`{value}`' for value in values)}" if values else "")
        for label, values in zip(metric.labels, metric.values, strict=True)
    )
    cells = (f"`{metric.name}`", metric.kind, labels, metric.tells, metric.action)
    # A bare | ends a table cell even inside backticks.
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
