from tidemill import Context, File


def echo(file: File, ctx: Context):
    ctx.log.info("got %s", file.name)
    ctx.progress(1, 1, "file")
    return file.read()
