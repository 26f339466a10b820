"""Whoever finds the request of another retry, with another key, takes it for its own."""

from patching import after_import, swap


class Pleased:
    """A record whose every request seems to have the caller's key."""

    def __init__(self, record):
        self._record = record

    def __getattr__(self, name):
        return getattr(self._record, name)

    def put_request(self, request):
        return self._record.put_request(request).model_copy(update={"key": request.key})


def change(module):
    def init(self, ledger, record, *rest, **named):
        honest(self, ledger, Pleased(record), *rest, **named)

    honest = swap(module.Calls, "__init__", init)


after_import("tidemill_gateway.calls", change)
