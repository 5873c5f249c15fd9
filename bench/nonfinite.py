"""What looking for NaN and infinity costs, on finite numbers: `python -m bench nonfinite [--ranks 2,4]`."""

from bench.pair import Pair

PAIR = Pair("nonfinite", "on_nonfinite", ("ignore", "warn"), "warn", by="ignore", sizes="64KiB,1MiB,64MiB")
add_arguments, run, markdown = PAIR.add_arguments, PAIR.run, PAIR.markdown
