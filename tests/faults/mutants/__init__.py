"""Protections taken away one at a time: each must make the lab fail (`python -m tests.faults.mutants`)."""
