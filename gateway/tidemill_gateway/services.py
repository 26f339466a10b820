"""What a gateway is made of, put together once. The entry point builds it from the settings, a test from twins."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from tidemill.ledger.api import Ledger
from tidemill.record import Record
from tidemill.settings import GatewaySettings, IntakeSettings
from tidemill.store import Store
from tidemill_gateway.auth import Owner, Owners
from tidemill_gateway.calls import Calls
from tidemill_gateway.catalogue import Catalogue
from tidemill_gateway.deploy import Deployer
from tidemill_gateway.feed import Feed
from tidemill_gateway.intake.canary import Canary
from tidemill_gateway.intake.events import Events, Notifications
from tidemill_gateway.intake.reconciler import Reconciler
from tidemill_gateway.intake.submit import Bell, Submitter
from tidemill_gateway.intake.webhook import Receiver
from tidemill_gateway.metrics import Metrics
from tidemill_gateway.pressure import Pressure
from tidemill_gateway.replay import Replays


class Services:
    """The parts of one gateway. `start` begins taking bucket events and listing; the HTTP API needs neither."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        record: Record,
        store: Store,
        bell: Bell,
        gateway: GatewaySettings,
        intake: IntakeSettings,
        lease_s: float = 15.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ledger = ledger
        self.record = record
        self.store = store
        self.gateway = gateway
        self.clock = clock
        self.holder = f"gateway-{secrets.token_hex(4)}"
        self.started = False
        self.owner = Owner("default", gateway.buckets)
        self.owners = Owners({gateway.token.get_secret_value(): self.owner})
        self.metrics = Metrics()
        self.catalogue = Catalogue(ledger)
        self.pressure = Pressure(ledger)
        self.feed = Feed(ledger)
        self.submitter = Submitter(ledger, store, bell, max_hops=intake.max_hops)
        self.deployer = Deployer(ledger, record, store, clock)
        self.calls = Calls(
            ledger,
            record,
            store,
            self.catalogue,
            self.submitter,
            self.pressure,
            self.metrics,
            holder=self.holder,
            lease_s=lease_s,
            clock=clock,
        )
        self.replays = Replays(
            ledger, record, store, self.deployer, self.submitter, self.calls, self.pressure, self.metrics
        )
        # Without a secret no event is taken, so none is expected.
        expected = bool(gateway.hook_secret.get_secret_value()) and intake.canary_s > 0
        canary = Canary(store, record.bucket, self.holder, intake.canary_s) if expected else None
        arn = intake.notify_arn
        self.events = Events(self.catalogue, Notifications(store, record.bucket, arn) if arn else None, canary)
        self.receiver = Receiver(
            ledger, self.catalogue, self.submitter, self.pressure, self.metrics, queue=intake.queue, canary=canary
        )
        self.reconciler = Reconciler(
            ledger,
            record,
            store,
            self.catalogue,
            self.submitter,
            self.pressure,
            self.metrics,
            holder=self.holder,
            interval_s=intake.interval_s,
            clock=clock,
        )

    def start(self) -> None:
        self.receiver.start()
        self.reconciler.start()
        self.events.start()
        self.started = True

    def stop(self) -> None:
        """End the threads, in at most a second each; harmless when they never began."""
        self.events.stop(0.3)
        self.receiver.stop(0.7)
        self.reconciler.stop(0.7)
