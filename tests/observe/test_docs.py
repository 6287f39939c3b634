from __future__ import annotations

from eluvix_extproc.observe.catalogue import CATALOGUE
from eluvix_extproc.observe.docs import PAGE, page


def test_the_page_is_what_the_catalogue_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m eluvix_extproc.observe.docs"


def test_each_metric_says_what_it_tells_and_what_to_do() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(names) == len(set(names))
    for metric in CATALOGUE:
        assert metric.tells.endswith(".") and metric.action.endswith("."), metric.name
        assert len(metric.labels) == len(metric.values), metric.name
        assert (metric.kind == "histogram") == bool(metric.bounds), metric.name
        assert list(metric.bounds) == sorted(set(metric.bounds)), metric.name
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
