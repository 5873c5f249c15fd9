"""Ranks on one machine, by TCP, Unix-domain sockets, shared memory: `python -m bench same_host [--ranks 2,4]`."""

from bench.pair import Pair

PAIR = Pair("same_host", "same_host", ("tcp", "unix", "auto"), "unix", by="auto", sizes="4KiB,64KiB,1MiB,16MiB,64MiB")
add_arguments, run, markdown = PAIR.add_arguments, PAIR.run, PAIR.markdown
