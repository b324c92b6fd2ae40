"""
The part of PromQL that alerts and panels use, with scrapes, and with the `for` of alerts.

It is written for tests without Prometheus. `increase` does not extrapolate, which changes no sign
and no quantile. If promtool is installed, a test compares the two.
"""

import itertools
import math
import operator
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.metrics_core import Metric

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Samples = list[tuple[float, float]]

LOOKBACK = 300.0
"""For how many seconds a sample stands for later moments, unless a scrape misses the series."""

GONE = math.inf
"""Marks in a series that the last scrape did not have it. No metric here has this value."""

TOKEN = re.compile(
    r'\s*("[^"]*"|\d+(?:\.\d+)?[smh]?|[A-Za-z_]\w*|[<>=!]=|=~|!~|[<>=(){}\[\],/])', re.ASCII
)
MATCHED: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq, "!=": operator.ne, "=~": lambda value, pattern: bool(
        re.fullmatch(pattern, value)
    ),
}  # fmt: skip
COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, "==": operator.eq, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip
AGGREGATED: dict[str, Callable[[list[float]], float]] = {
    "sum": sum, "min": min, "max": max, "avg": lambda values: sum(values) / len(values),
}  # fmt: skip


def seconds(duration: str) -> float:
    """Return the length of a duration such as 5m."""
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


class Series:
    """All samples that were scraped, by the names of metrics."""

    def __init__(self) -> None:
        self.of: defaultdict[str, dict[Labels, Samples]] = defaultdict(dict)

    def scrape(self, at: float, metrics: Iterable[Metric], **target: str) -> None:
        """Add a scrape of a target; one that failed has no metrics."""
        found: defaultdict[str, Vector] = defaultdict(dict)
        for each in (sample for metric in metrics for sample in metric.samples):
            found[each.name][frozenset({**each.labels, **target}.items())] = each.value
        for name, known in self.of.items():
            for labels in known.keys() - found[name].keys():
                if labels >= target.items() and known[labels][-1][1] != GONE:
                    known[labels].append((at, GONE))
        for name, vector in found.items():
            for labels, value in vector.items():
                self.of[name].setdefault(labels, []).append((at, value))

    def between(
        self, begin: float, end: float, name: str, matchers: list[tuple[str, str, str]]
    ) -> dict[Labels, list[float]]:
        """Return the values of the series of a metric."""
        found: dict[Labels, list[float]] = {}
        for labels, samples in self.of[name].items():
            own = dict(labels)
            if all(MATCHED[op](own.get(label, ""), value) for label, op, value in matchers):
                first = bisect_left(samples, begin, key=lambda sample: sample[0])
                found[labels] = [value for moment, value in samples[first:] if moment <= end]
        return found


@dataclass
class Query:
    """An expression and its values at one moment."""

    series: Series
    at: float
    tokens: list[str]

    def next(self, *wanted: str) -> str:
        """Take the next token, which has to be one of *wanted*, if any."""
        token = self.tokens.pop(0)
        if wanted and token not in wanted:
            raise ValueError(f"{token!r} instead of {wanted}")
        return token

    def follows(self, *tokens: str) -> bool:
        return bool(self.tokens) and self.tokens[0] in tokens

    def sets(self) -> Vector:
        found = self.compared()
        while self.follows("unless", "or"):
            if self.next() == "or":
                found = self.compared() | found
            else:
                others = self.compared()
                found = {each: value for each, value in found.items() if each not in others}
        return found

    def compared(self) -> Vector:
        found = self.value()
        if not self.follows(*COMPARED):
            return found
        holds, limit = COMPARED[self.next()], float(self.next())
        return {each: value for each, value in found.items() if holds(value, limit)}

    def value(self) -> Vector:
        token = self.next()
        if token == "(":
            found = self.sets()
            self.next(")")
        elif token in AGGREGATED:
            found = self.aggregated(AGGREGATED[token])
        elif token == "histogram_quantile":
            self.next("(")
            quantile = float(self.next())
            self.next(",")
            found = quantiles(quantile, self.sets())
            self.next(")")
        elif token in OVER_TIME:
            self.next("(")
            name = self.next()
            length = seconds(self.tokens[self.tokens.index("[") + 1]) if token == "rate" else 1
            samples = self.samples(name)
            self.next(")")
            found = {
                labels: value / length
                for labels, values in samples.items()
                if (value := OVER_TIME[token](values)) is not None
            }
        else:
            found = {labels: values[-1] for labels, values in self.samples(token).items()}
        return found

    def aggregated(self, function: Callable[[list[float]], float]) -> Vector:
        by: list[str] = []
        if self.follows("by"):
            by = self.names()
        self.next("(")
        groups: defaultdict[Labels, list[float]] = defaultdict(list)
        for labels, value in self.sets().items():
            groups[frozenset(each for each in labels if each[0] in by)].append(value)
        self.next(")")
        return {labels: function(values) for labels, values in groups.items()}

    def names(self) -> list[str]:
        self.next("by")
        self.next("(")
        found: list[str] = []
        while (token := self.next()) != ")":
            found += [token] if token != "," else []
        return found

    def samples(self, metric: str) -> dict[Labels, list[float]]:
        """Return the values in a range, or the last one of each series that is not gone."""
        matchers: list[tuple[str, str, str]] = []
        if self.follows("{"):
            self.next()
            while not self.follows("}"):
                label, op, value = self.next(), self.next(*MATCHED), self.next()
                matchers.append((label, op, value.strip('"')))
                if self.follows(","):
                    self.next()
            self.next("}")
        over = 0.0
        if self.follows("["):
            self.next()
            over = seconds(self.next())
            self.next("]")
        at = self.at
        if self.follows("offset"):
            self.next()
            at -= seconds(self.next())
        found: dict[Labels, list[float]] = {}
        seen = self.series.between(at - (over or LOOKBACK), at, metric, matchers)
        for labels, values in seen.items():
            kept = [each for each in (values if over else values[-1:]) if each != GONE]
            if kept:
                found[labels] = kept
        return found


def increase(values: list[float]) -> float | None:
    """Return by how much a counter has grown, which begins at 0 again at times."""
    if len(values) < 2:
        return None
    pairs = itertools.pairwise(values)
    return sum(new - old if new >= old else new for old, new in pairs)


OVER_TIME: dict[str, Callable[[list[float]], float | None]] = {
    "increase": increase, "rate": increase, "max_over_time": max,
    "last_over_time": lambda values: values[-1],
}  # fmt: skip
"""A rate is divided by the length of its range afterwards."""


def quantiles(quantile: float, buckets: Vector) -> Vector:
    """Return the quantile of each histogram, as histogram_quantile does."""
    groups: defaultdict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, value in buckets.items():
        bound = float(dict(labels)["le"])
        groups[frozenset(each for each in labels if each[0] != "le")].append((bound, value))
    found: Vector = {}
    for labels, bounds in groups.items():
        bounds.sort()
        rank = quantile * bounds[-1][1]
        below = lower = 0.0
        for bound, count in bounds:
            if count >= rank and count > 0:
                inside = (rank - below) / (count - below)
                found[labels] = lower + (bound - lower) * inside if bound < math.inf else lower
                break
            below, lower = count, bound
    return found


def values(query: str, series: Series, at: float) -> Vector:
    """Return what *query* is at a moment."""
    tokens, place = [], 0
    while query[place:].strip():
        found = TOKEN.match(query, place)
        if found is None:
            raise ValueError(f"{query[place:]!r} is not understood")
        tokens.append(found[1])
        place = found.end()
    reading = Query(series, at, tokens)
    result = reading.sets()
    if reading.tokens:
        raise ValueError(f"{reading.tokens} is left of {query!r}")
    return result


Alert = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class Rules:
    """Alerts, which are looked at after each scrape."""

    rules: list[dict[str, Any]]
    series: Series = field(default_factory=Series)
    since: dict[Alert, float] = field(default_factory=dict)
    fired: defaultdict[Alert, list[float]] = field(default_factory=lambda: defaultdict(list))
    looked: list[float] = field(default_factory=list)

    def look(self, at: float) -> None:
        """Note which alerts fire."""
        self.looked.append(at)
        true: dict[Alert, str] = {
            (rule["alert"], tuple(sorted(labels))): rule.get("for", "0s")
            for rule in self.rules
            for labels in values(rule["expr"], self.series, at)
        }
        self.since = {alert: self.since.get(alert, at) for alert in true}
        for alert, since in self.since.items():
            if at - since >= seconds(true[alert]):
                self.fired[alert].append(at)
