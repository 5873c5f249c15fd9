"""Node that runs the code it is given: `python -m experiment.coded CODE`."""

import sys

exec(sys.argv[1], {})
