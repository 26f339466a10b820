"""Durable state: what the platform bucket holds, and the one way in which a job ends."""

from tidemill.record.record import Record

__all__ = ["Record"]
