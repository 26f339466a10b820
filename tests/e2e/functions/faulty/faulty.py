import os
import signal
import sys

from tidemill import Context, File, PermanentError


def faulty(file: File, ctx: Context):
    how = ctx.params["how"]
    print("about to", how)
    if how == "raise":
        raise ValueError("no such luck")
    if how == "permanent":
        raise PermanentError("never again")
    if how == "exit":
        os._exit(3)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "hang":
        while True:
            pass
    if how == "flood":
        line = "x" * 99 + "\n"
        for _ in range(500_000):
            sys.stdout.write(line)
    if how == "binary":
        os.write(1, bytes(range(256)) * 1000)
    return {"how": how}
