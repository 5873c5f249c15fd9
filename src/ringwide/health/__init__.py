"""Watching the other ranks while a collective waits: heartbeats, silence, stragglers."""
