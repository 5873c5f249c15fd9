"""Bytes that nobody vouches for, in any number: mutated by seed in the tests, guided by coverage in `make fuzz`."""
