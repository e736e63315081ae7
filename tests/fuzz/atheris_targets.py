"""The targets of `fuzz_targets.py` under atheris, which follows the code's branches to new inputs.

python tests/fuzz/atheris_targets.py toml|table|arrays|message [options of libFuzzer, such as -max_total_time=60]
"""

import sys
from pathlib import Path

SEEDS = {
    "toml": b'rounds = 3\n[problem]\nkind = "quadratic"\nagents = 3\n[algorithm]\nname = "fedavg"\nstep = 0.1\n',
    "table": b"a,y,x\np,1,2\nq,0,1\n",
}


def main(name, *options):
    import atheris

    sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "src")]
    with atheris.instrument_imports(
        include=["fedpoint.config", "fedpoint.data", "fedpoint.store", "fedpoint.show", "fedpoint.federation"]
    ):
        import fuzz_targets as targets

    known = {
        "toml": targets.toml_file,
        "table": targets.table,
        "arrays": targets.arrays,
        "message": targets.message,
    }
    target = known[name]
    target(SEEDS.get(name, b""))  # what is slow the first time
    atheris.Setup([sys.argv[0], *options], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
