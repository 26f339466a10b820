"""The placement service: who runs what, where, and how many."""
