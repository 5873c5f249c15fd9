"""Imported by the fork server before anything else: from then on it is in a process group of its own.

Ctrl-C, and a signal to the launcher's process group, are for the launcher. The server and its nodes, which it would
end before there is a report, must not hear them.
"""

import os

os.setpgrp()
