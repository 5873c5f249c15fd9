"""Collectives: plans, operations, and the dispatcher that carries them out with the other ranks."""
