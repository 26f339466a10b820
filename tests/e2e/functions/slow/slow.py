import hashlib
import os
import time

from tidemill import Context, File


class Slow:
    def load(self, ctx: Context) -> None:
        self.pid = os.getpid()

    def __call__(self, file: File, ctx: Context):
        time.sleep(ctx.params["seconds"])
        return {"sha256": hashlib.sha256(file.read()).hexdigest(), "pid": self.pid}
