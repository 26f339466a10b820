"""The fault lab: the real system under faults drawn from a seed, and a checker that counts what went wrong."""
