"""What a user did that cannot be carried out, told in one line."""


class InputError(Exception):
    """The input is wrong: the message says what, where (file, row, series, field) and what to do.

    The command line prints it as one line and exits with code 2. Everything else that is raised is a
    fault of ours and keeps its trace.
    """
