import os
import select
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.system

LEASHED = """
import os, signal, sys
from ringwide.experiment.forkserver import die_with_parent
die_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
signal.pause()
"""
PARENT = f"""
import os, signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", {LEASHED!r}, str(os.getpid())])
signal.pause()
"""


def test_a_node_is_killed_with_its_launcher() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        node = int(parent.stdout.readline())
        handle = os.pidfd_open(node)
        parent.kill()
        try:
            # The node writes nothing and reads nothing, so only the kernel can have ended it.
            ended = select.select([handle], [], [], 60)[0] == [handle]
            if not ended:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
    assert ended


def test_a_node_whose_launcher_is_gone_already_ends_at_once() -> None:
    ran = subprocess.run([sys.executable, "-c", LEASHED, "1"], capture_output=True, text=True, timeout=110)
    assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, "")
