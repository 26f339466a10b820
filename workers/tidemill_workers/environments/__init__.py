"""One virtual environment per function revision, built once per host.

Runners start with the Python of their function's environment, in which nothing of Tidemill's is installed. An
environment depends only on the requirements file, on `no_deps`, and on the base interpreter: revisions that agree in
those share one. Builds happen in a folder of their own that is renamed when complete, under a lock between processes,
so that two agents on a host build once, and nobody ever sees half an environment.
"""

from __future__ import annotations

from tidemill_workers.environments.builder import Environment, EnvironmentBuilder
from tidemill_workers.environments.errors import EnvironmentFailed

__all__ = ["Environment", "EnvironmentBuilder", "EnvironmentFailed"]
