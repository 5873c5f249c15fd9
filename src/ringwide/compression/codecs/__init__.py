"""The codecs, one file each, and their registry."""
