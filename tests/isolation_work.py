"""Work for test_isolation.py: each function does one thing that a cell may do."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


def double(payload):
    print("standard output")
    os.write(2, b"standard error")
    return {"doubled": 2 * payload["n"]}


def refuse(payload):
    raise ValueError("first line\nsecond line")


def eat_tensors(payload):
    import torch

    return torch.ones(2**28).sum().item()


def eat_in_backward(payload):
    import torch

    x = torch.ones(2**24, requires_grad=True)
    torch.stack([x * 1.0 for _ in range(payload["copies"])]).exp().sum().backward()


def eat_bytes(payload):
    return len(b"x" * 2**30)


def sleep(payload):
    if "marker" in payload:
        Path(payload["marker"]).write_text(f"{os.getpid()} {os.getppid()}.")
    time.sleep(60)


def spin_holding_signals(payload):
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)
    while True:
        pass


def leave(payload):
    sys.exit(payload["code"])


def leave_hard(payload):
    os._exit(0)


def kill_itself(payload):
    os.kill(os.getpid(), payload["signal"])


def kill_server_once(payload):
    marker = Path(payload["marker"])
    if not marker.exists():
        marker.touch()
        kill_server(payload)
    return "done"


def kill_server(payload):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def leave_children(payload):
    plain = subprocess.Popen(["sleep", "60"])
    fled = subprocess.Popen(["sleep", "60"], start_new_session=True)
    return [plain.pid, fled.pid]


def leave_a_thread(payload):
    threading.Thread(target=time.sleep, args=(60,)).start()
    return "done"


def shout(payload):
    for _ in range(payload["lines"]):
        print("x" * 999)
    print("the last line", flush=True)
    return 1


def say_who(payload):
    return {"pid": os.getpid(), "torch": "torch" in sys.modules, "modules": len(sys.modules)}


def answer_what_json_lacks(payload):
    return {1, 2}
