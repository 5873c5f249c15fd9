"""Import that moves the fork server into a process group of its own; the server imports it before anything else.

Ctrl-C and signals to the launcher's process group are for the launcher alone. They would end the server and its nodes
before there is a report.
"""

import os

os.setpgrp()
