"""Data-parallel training over a ring: data, models, optimizer, gradient exchange and checkpoints."""
