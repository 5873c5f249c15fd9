"""NUMBERS ROUND THE RING: carries out the machines' instructions over links."""
