import hashlib

from tidemill import Context, File


def digest(file: File, ctx: Context):
    return {"sha256": hashlib.sha256(file.read() + ctx.params["salt"].encode()).hexdigest(), "size": file.size}
