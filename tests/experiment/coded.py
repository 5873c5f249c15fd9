"""A node that does what it is told: `python -m experiment.coded CODE`."""

import sys

exec(sys.argv[1], {})
