"""The canary: what is said when its event comes, comes late, comes elsewhere, or never."""

import pytest

from tidemill.errors import StoreUnavailable
from tidemill.testing import MemoryStore
from tidemill_gateway.intake.canary import Canary


class World:
    """A store, a clock, and a canary that is due every minute."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store = MemoryStore(clock=lambda: self.now)
        self.store.ensure_bucket("tidemill")
        self.canary = self.another("gateway-1")

    def another(self, holder: str) -> Canary:
        return Canary(self.store, "tidemill", holder, 60.0, clock=lambda: self.now, wall=lambda: self.now)

    def at(self, now: float) -> None:
        self.now = now
        self.canary.turn()

    def keys(self) -> list[str]:
        return [info.key for page in self.store.pages("tidemill", "canary/") for info in page]


def test_an_event_in_time_gives_its_seconds_and_the_object_goes_with_the_next() -> None:
    world = World()
    world.at(1000.0)
    [key] = world.keys()
    assert world.canary.seen("tidemill", key, 1000.25)
    assert (world.canary.health.ok, world.canary.health.last_s) == (True, 0.25)
    world.at(1059.0)
    assert world.keys() == [key]
    world.at(1060.0)
    assert len(world.keys()) == 1
    assert world.keys() != [key]


def test_events_that_do_not_come_are_said_and_their_return_too() -> None:
    world = World()
    world.at(1000.0)
    world.at(1009.0)
    assert world.canary.health.ok is None
    world.at(1011.0)
    assert (world.canary.health.ok, world.canary.lost) == (False, 1)
    assert "listings alone" in world.canary.health.detail
    world.at(1022.0)  # sooner than a minute: something is wrong
    [key] = world.keys()
    world.canary.seen("tidemill", key, 1022.5)
    assert (world.canary.health.ok, world.canary.health.last_s) == (True, 0.5)


def test_an_event_after_its_time_changes_nothing() -> None:
    world = World()
    world.at(1000.0)
    [key] = world.keys()
    world.at(1011.0)
    assert world.canary.seen("tidemill", key, 1012.0)
    assert world.canary.health.ok is False


def test_an_event_that_went_to_another_gateway_counts() -> None:
    world = World()
    other = world.another("gateway-2")
    world.at(1000.0)
    [key] = world.keys()
    assert other.seen("tidemill", key, 1000.1)
    assert world.keys() == []
    world.at(1001.0)
    assert world.canary.health.ok
    assert other.health.ok is None


def test_objects_that_are_no_canary_are_left_to_the_triggers() -> None:
    world = World()
    assert not world.canary.seen("inbox", "canary/gateway-1/x", 0.0)
    assert not world.canary.seen("tidemill", "requests/x", 0.0)


def test_a_store_that_is_away_says_nothing_about_events(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    def away(*_: object, **__: object) -> str:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "put", away)
        with pytest.raises(StoreUnavailable):
            world.at(1000.0)
    world.at(1030.0)
    assert world.canary.health.ok is None
    world.at(1061.0)
    assert len(world.keys()) == 1
