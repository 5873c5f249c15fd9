"""Measurements, by the public API only. Each speed claim in the README is one command here."""
