"""What Prometheus reads at /metrics. Each gateway has its own registry, so that tests may have several."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def method_label(method: str) -> str:
    """Give the method of a request as a label: anybody may invent one, and each label is kept for good."""
    return method if method in _METHODS else "other"


class Metrics:
    """The gateway's own numbers; seconds and counts."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Histogram(
            "tidemill_http_request_seconds", "HTTP requests", ("method", "route", "status"), registry=registry
        )
        self.events_received = Counter("tidemill_events_received", "Bodies that the webhook took", registry=registry)
        self.events_dropped = Counter(
            "tidemill_events_dropped", "Bodies that a listing has to make up for", registry=registry
        )
        self.events_junk = Counter("tidemill_events_junk", "Bodies that no dialect can read", registry=registry)
        self.jobs_accepted = Counter(
            "tidemill_jobs_accepted", "New jobs: by event, listing, api or request record", ("via",), registry=registry
        )
        self.intake_seconds = Histogram(
            "tidemill_intake_seconds", "From a bucket event to its job", buckets=_QUICK, registry=registry
        )
        self.listing_seconds = Histogram("tidemill_listing_seconds", "One round of listing", registry=registry)
        self.listed_objects = Counter("tidemill_listed_objects", "Objects seen in listings", registry=registry)
        self.jobs = Gauge("tidemill_jobs", "Jobs that the ledger knows", ("function", "state"), registry=registry)
        self.agents = Gauge("tidemill_agents", "Agents that report", ("pool", "state"), registry=registry)
        self.backlog = Gauge("tidemill_events_waiting", "Bodies that wait in memory", registry=registry)
        self.events_ok = Gauge(
            "tidemill_events_ok", "Whether bucket events come: 1, 0, or -1 when it is not known", registry=registry
        )
        self.canary_seconds = Gauge(
            "tidemill_events_canary_seconds", "From a test object to its event, the last time", registry=registry
        )
        self.ledger_memory = Gauge("tidemill_ledger_memory_bytes", "Redis' memory", ("kind",), registry=registry)

    def text(self) -> bytes:
        """Give all of them in Prometheus' text format."""
        return generate_latest(self.registry)
