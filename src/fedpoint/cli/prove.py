"""`fedpoint prove`: how bad can a method get, among all agents of a class?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from fedpoint.cli import options
from fedpoint.cli.certify import opened, setting
from fedpoint.core.errors import FedpointError

if TYPE_CHECKING:
    from fedpoint.core.algorithm import Algorithm

CLAIMS = ("contraction", "bias", "distance", "step")


@click.command()
@click.argument("method")
@click.option(
    "--smooth", type=float, required=True, metavar="L", help="Smoothness of the agents' losses (largest curvature)."
)
@click.option(
    "--strong", type=float, default=0.0, metavar="MU", help="Strong convexity of the losses; default: 0 (convex)."
)
@click.option("--step", type=float, help="Length of a local step.")
@click.option("--local-steps", type=int, help="Number of local steps in a round.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Another setting, such as pull=0.5; repeatable."
)
@click.option(
    "--heterogeneity",
    type=float,
    default=1.0,
    metavar="G",
    show_default=True,
    help="How different agents are: mean |g_k(w*)|^2 <= G^2.",
)
@click.option(
    "--agents", type=int, default=2, show_default=True, help="Number of agents; for averaging, two are as bad as many."
)
@click.option("--rounds", type=int, default=1, show_default=True, help="Rounds after which the distance is bounded.")
@click.option("--quadratic", is_flag=True, help="Allow quadratic losses only.")
@click.option(
    "--only", "claims", multiple=True, type=click.Choice(CLAIMS), help="Compute only this worst case; repeatable."
)
@click.option("--attain", is_flag=True, help="Also run the worst agents.")
@options.as_json
def prove(
    method: str,
    smooth: float,
    strong: float,
    step: float | None,
    local_steps: int | None,
    settings: tuple[str, ...],
    heterogeneity: float,
    agents: int,
    rounds: int,
    quadratic: bool,
    claims: tuple[str, ...],
    attain: bool,
    as_json: bool,
) -> None:
    """Compute the worst case of a method over all agents of a class.

    METHOD is a name in the catalogue, or a class in a Python file (my_method.py:Mine), which is executed. The results
    are the contraction, the bias, the distance after --rounds and the largest step. On a network all agents are joined
    and each keeps half of the weight.
    """
    from fedpoint.verbs.prove import prove as worst_of

    given = {"step": step, "local_steps": local_steps, **dict(map(setting, settings))}
    algorithm = _algorithm(method, {name: value for name, value in given.items() if value is not None})
    proof = worst_of(
        algorithm,
        smooth,
        strong,
        heterogeneity,
        agents,
        rounds,
        quadratic=quadratic,
        claims=claims or CLAIMS,  # type: ignore[arg-type] # click has looked
        attain=attain,
    )
    click.echo(json.dumps(proof.to_dict(), indent=2) if as_json else proof.text())


def _algorithm(method: str, given: dict[str, Any]) -> Algorithm:
    """A method by its name, or of a class in a file."""
    if ":" not in method:
        from fedpoint.config.methods import build

        return build({"name": method, **given})
    from fedpoint.core.algorithm import Algorithm
    from fedpoint.core.own_code import calling

    with opened(method) as found:
        if not (isinstance(found, type) and issubclass(found, Algorithm)):
            raise FedpointError(f"{method} is not a class of an fp.Algorithm")
        with calling(found.__name__):
            return found(**given)
