"""A function that does nothing: what is measured is everything around it."""

from tidemill import Context, File


def nothing(file: File, ctx: Context):
    return {"size": file.size}
