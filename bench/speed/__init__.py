"""ringwide beside everyone else and beside the limit: `python -m bench speed`.

For one number of ranks the processes of all contestants live at the same time, and all but one sleep in a read from the
leader's socket. The leader (`leader.py`) orders turns: so many calls of one size from one contestant, then from the
next, round after round, so that noise hits all alike. Workers (`*_worker.py`) run in environments of their own; what
they share with the leader (`conversation.py`, `turns.py`) needs nothing but the standard library.
"""
