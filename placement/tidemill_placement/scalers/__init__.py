"""Scalers start and stop agents by name. A laptop, a VM and a cluster differ in nothing else."""

from tidemill_placement.scalers.api import AgentState, Scaler, ScalerError
from tidemill_placement.scalers.local import LocalScaler

__all__ = ["AgentState", "LocalScaler", "Scaler", "ScalerError"]
