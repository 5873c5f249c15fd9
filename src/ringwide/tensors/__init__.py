"""The user's tensors as flat buckets and back: leaves, packing, arithmetic, buffers, checks."""
