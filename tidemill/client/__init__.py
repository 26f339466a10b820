"""The Python client: calls without I/O (`wire`, `asking`, `jobs`, `catalogue`, `mapping`), and drivers for them."""

from tidemill.client.aio import AsyncClient
from tidemill.client.job import AsyncJob, Job
from tidemill.client.jobs import LogLine
from tidemill.client.output import AsyncOutput, Output
from tidemill.client.sync import Client
from tidemill.client.values import Candidate, Cost, OutputInfo, Placement, Progress

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "AsyncOutput",
    "Candidate",
    "Client",
    "Cost",
    "Job",
    "LogLine",
    "Output",
    "OutputInfo",
    "Placement",
    "Progress",
]
