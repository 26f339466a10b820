"""What every job of the lab runs: the input says what is wanted; each run leaves its own mark in the result."""

import hashlib
import json
import os
import time
import uuid

from tidemill import Context, File, PermanentError

LARGE_BYTES = 200_000  # above what travels inside a commit record


class Lab:
    def load(self, ctx: Context) -> None:
        self.runner = os.getpid()

    def __call__(self, file: File, ctx: Context):
        body = file.read()
        asked = json.loads(body)
        ctx.log.info(f"job {ctx.job.id} attempt {ctx.job.attempt}")
        time.sleep(asked["seconds"])
        if asked["want"] == "fail":
            raise PermanentError("this input is meant to fail")
        nonce = uuid.uuid4().hex
        result = {"n": asked["n"], "input": hashlib.sha256(body).hexdigest(), "nonce": nonce, "runner": self.runner}
        if asked["want"] == "large":
            (ctx.output_dir / "large.bin").write_bytes(nonce.encode() * (LARGE_BYTES // len(nonce)))
        if asked["want"] == "many":
            for number in range(3):
                (ctx.output_dir / f"part-{number}.txt").write_text(f"{nonce} {number}\n")
        return result
