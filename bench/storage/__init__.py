"""Measurements of stores."""
