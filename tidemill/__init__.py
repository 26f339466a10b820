"""Tidemill: an event-driven GPU job queue.

Importing this package is cheap: the names below are loaded at first use, and none of them brings a server library.
"""

__version__ = "0.1.0"
