"""The peer's half of a certificate of privacy: updates in, released updates out, a line of JSON for each call."""

import sys

from bridge import Line


def serve(mechanisms, version):
    """`mechanisms[name]()` makes a function of one update, or of a list of them, as lists of numbers."""
    line = Line()
    release = mechanisms[sys.argv[1]]()
    line.say({"version": version})
    while True:
        asked = line.hear()
        if asked is None:
            return
        line.say({"released": [float(x) for x in release(asked["update"])]})
