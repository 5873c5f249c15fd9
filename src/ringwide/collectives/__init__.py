"""Collectives under way: from a call's plan to frames and back.

A call brings its buckets (`call_kinds`), a plan says which algorithm carries each (`plan`), the dispatcher numbers the
running collective (`dispatcher`, `running_collective`), and one operation for each bucket carries out what a machine of
`protocol/` says (`single_segment`, `bucket_operation`, `compressed_operation`).
"""
