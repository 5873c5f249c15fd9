"""Faults on purpose: real processes on loopback, what happens to them, and a check of everything they returned.

python -m tests.faults                 all rows, one table
python -m tests.faults killed --runs 20 --seed 7

rows          what happens, and what must be seen: one file a row (rows/)
stage.py      a ring of real processes for one run of a row
crew.py       those processes from outside; nursery.py: where they come from; rank.py: one of them from inside
proxy.py      what is done to the bytes between them; damage.py: to single frames
known.py      numbers whose sum is known
history.py    what each rank wrote down; checker.py: what is wrong with all that was written down
"""
