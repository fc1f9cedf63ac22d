"""Measurements: `make bench`, or `python -m bench NAME` for one of them."""
