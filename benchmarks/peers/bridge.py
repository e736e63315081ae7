"""The peer's half of a certificate: rounds asked for over standard input, fields asked back over standard output.

`fp.certify` examines round(w, agents) in fedpoint's process; the framework lives in another, with its own Python. One
line of JSON for every question and answer. A `run` that has not been seen before starts with a new federation.
"""

import json
import os
import sys

STEP, STEPS, PULL, Q = 0.05, (2, 3, 4, 5, 3), 0.7, 1.0  # certificates.py says so to certify


class Agent:
    """One agent of the battery, at the other end of the line."""

    def __init__(self, line, k, weight):
        self._line, self.k, self.weight, self.steps = line, k, weight, STEPS[k]

    def field(self, w):
        return self._line.ask({"field": self.k, "w": [float(x) for x in w]})

    def loss(self, w):
        return self._line.ask({"loss": self.k, "w": [float(x) for x in w]})


class Line:
    def __init__(self):
        # What a framework prints goes to standard error; the line keeps the real standard output.
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._in = sys.stdin

    def say(self, message):
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def hear(self):
        line = self._in.readline()
        return json.loads(line) if line else None

    def ask(self, message):
        self.say(message)
        return self.hear()


def serve(methods, version):
    """Play rounds of `methods[name]()` until the line is closed. A federation has round(w, agents, population) -> w."""
    line = Line()
    make = methods[sys.argv[1]]
    line.say({"version": version})
    runs, current = {}, None
    while True:
        asked = line.hear()
        if asked is None:
            return
        if asked["run"] != current:
            runs, current = {asked["run"]: runs.get(asked["run"]) or make()}, asked["run"]
        agents = [Agent(line, k, weight) for k, weight in asked["agents"]]
        line.say({"model": [float(x) for x in runs[current].round(asked["w"], agents, asked["population"])]})
