"""A function that takes three seconds each time: what is measured is what a fault adds to them."""

import time

from tidemill import Context, File

RUN_S = 3.0


def steady(file: File, ctx: Context):
    time.sleep(RUN_S)
    return {"size": file.size}
