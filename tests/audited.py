"""Runs a module like `python -m`, and listens to the interpreter from the first line on: audited.py REPORT MODULE ...

The report has a line for each event that makes objects or code of data: `pickle.find_class`, `marshal.loads`, `exec`.
What imports do is left out: they unmarshal and execute what is installed, and that is trusted as all code is.
"""

import os
import sys
from types import FrameType

EVENTS = ("pickle.find_class", "marshal.loads", "exec")
REPORT = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def by_an_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def listen(event: str, arguments: tuple[object, ...]) -> None:
    if event in EVENTS and not by_an_import(sys._getframe(1)):
        what = getattr(arguments[0], "co_filename", str(arguments)[:200])  # of code, where it comes from
        os.write(REPORT, f"{event} {what}\n".encode())


sys.addaudithook(listen)

if __name__ == "__main__":
    import runpy

    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
