"""The agent: one per GPU, or per host for CPU slots. A Celery worker that claims jobs and supervises their runners.

All traffic with ledger and store happens here; a runner (`runners.py`) gets files by path and answers over a pipe.
"""
