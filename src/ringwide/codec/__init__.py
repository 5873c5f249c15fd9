"""NUMBERS <-> BYTES: codecs, one file each, and the registry that names them. Never sees a socket."""
