"""What an all-reduce costs, and how that grows: `python -m bench costs`.

Five curves, each a section of bench/results/costs.json: *time* over the number of ranks, *processor* seconds for a
gigabyte, *memory* beyond the tensor over its size, *allocations* of the interpreter over many calls, and the time to
*join* over the number of ranks. gloo is measured beside it in the same processes, in turns, wherever it does the same.
"""
