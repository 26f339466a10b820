"""Measurements, as ratios in one run: `python -m bench [NAME ...] [--write]`. Tests never assert on these."""
