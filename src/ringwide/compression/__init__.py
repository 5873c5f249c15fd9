"""Compressing what travels: codecs, the policy that picks one, the jobs that run it, error feedback."""
