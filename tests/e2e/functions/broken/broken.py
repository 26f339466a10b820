import nothing_that_exists  # noqa: F401


class Broken: ...
