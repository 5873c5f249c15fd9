"""One suite for every backend of torch.distributed: what gloo does is what ringwide has to do.

    cases/       what is asked of a backend, with torch.distributed only; conformance.py lists them all
    limits.py    what gloo and what ringwide cannot do, and what they say then
    nursery.py   the process that has imported torch once and forks the ranks
    rank.py      one rank: plays case after case and writes down how each went
    sets.py      from the side of pytest: sets of processes, started when first asked for

One set of processes plays all cases, so a case costs a few milliseconds. If one fails or hangs the set is ended, the
case gets the blame, and another set goes on with the next.
"""
