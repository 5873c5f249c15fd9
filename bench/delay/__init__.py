"""All-reduce between ranks that are far from each other: a delaying proxy of our own stands between them.

Each direction of a connection delays what it carries by half a round trip, and has at most a *window* of bytes in
flight, counted until they are acknowledged, a whole round trip after they left. That is what limits one TCP connection
on a long link, and what `lanes` are for: n connections have n windows.

How large a window is, by default 4 MiB: a connection of ours asks for buffers of that size (`buffer_bytes`), and Linux
doubles what is asked for, so that it holds so many bytes of data in spite of their bookkeeping. New kernels grant it
(6.18 does), older ones 208 KiB unless net.core.rmem_max and wmem_max are raised; programs that ask for nothing grow
to the 4 MiB of tcp_wmem, of which bookkeeping takes up to half. A smaller window makes one lane slower, and more lanes
gain more, so 4 MiB is the case in which lanes gain least: `--window 208KiB,2MiB,4MiB` measures the others.

Neither loss nor slow start is played: both are harder on one connection than on many. gloo takes its turns through the
same proxy, with the one connection that it has (`bench/delay/gloo.py`); between two ranks only.
"""
