"""Gymnasium's FrozenLake, CliffWalking and Taxi as federated policy evaluation: a different world for each agent."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Annotated, Protocol, TypeAlias, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Count, Seed, Within
from fedpoint.core.numbers import counted
from fedpoint.problems.mdp import MDP, as_policy, chain_of
from fedpoint.problems.td import TD, EvaluationOptions, random_features

Success: TypeAlias = float | Sequence[float]
Features: TypeAlias = ArrayLike | None
Outcome: TypeAlias = tuple[
    float, int, float, bool
]  # its chance, the state that is reached, the reward, whether it ends


class GymWorld(Protocol):
    """What is read of an environment of Gymnasium's toy text."""

    P: dict[int, dict[int, list[Outcome]]]
    initial_state_distrib: np.ndarray


class ToyText(Protocol):
    @property
    def unwrapped(self) -> GymWorld: ...


@checked
def frozen_lake(
    agents: Count = 10,
    size: Annotated[int, Within(2, 100)] = 4,
    success: Success = (0.5, 0.9),
    maps: str = "random",
    features: Features = None,
    seed: Seed = 0,
    **options: Unpack[EvaluationOptions],
) -> TD:
    """TD on Gymnasium's FrozenLake.

    Args:
        agents: how many.
        size: of the lake, size x size fields.
        success: how likely a step goes where it should, else to one of its sides: a number, (low, high) to draw one
            per agent, or one per agent.
        maps: "random": a lake of its own for each agent; "same": one random lake for all.
        features: None for one per state that some agent visits, a number of random directions, or (S, d).
        seed: of what is drawn.
        options: those of `TD`: gamma, policy, sampling, weights. The default policy is drawn at random
            from the seed, and shared. (Under the uniform policy slips would change nothing.)

    """
    if maps not in ("random", "same"):
        raise FedpointError(f'maps must be "random" or "same", got {maps!r}')
    module = _gymnasium("frozen_lake")
    rng = np.random.default_rng(seed)
    chances = _successes(success, agents, rng)
    draws = rng.integers(0, 2**31, agents)
    lakes = [module.generate_random_map(size, seed=int(draws[k if maps == "random" else 0])) for k in range(agents)]
    mdps = [
        mdp_of(module.FrozenLakeEnv(desc=lake, is_slippery=True, success_rate=float(p)))
        for lake, p in zip(lakes, chances, strict=True)
    ]
    return _evaluation(mdps, features, rng, options)


@checked
def cliff_walking(
    agents: Count = 10,
    success: Success = (0.5, 0.9),
    features: Features = None,
    seed: Seed = 0,
    **options: Unpack[EvaluationOptions],
) -> TD:
    """TD on Gymnasium's CliffWalking; where a step fails, any action happens.

    Args:
        agents: how many.
        success: how likely an action works: a number, (low, high) to draw one per agent, or one per agent.
        features: None for one per state that some agent visits, a number of random directions, or (S, d).
        seed: of what is drawn.
        options: those of `fp.problems.TD`: gamma, policy, sampling, weights. The default policy is drawn at random from
            the seed, and shared.
    """
    env, rng = _gymnasium("cliffwalking").CliffWalkingEnv(), np.random.default_rng(seed)
    return _slipping(env, _successes(success, agents, rng), features, rng, options)


@checked
def taxi(
    agents: Count = 10,
    success: Success = (0.5, 0.9),
    features: Features = 16,
    seed: Seed = 0,
    **options: Unpack[EvaluationOptions],
) -> TD:
    """TD on Gymnasium's Taxi; where a step fails, any action happens.

    Args:
        agents: how many.
        success: how likely an action works: a number, (low, high) to draw one per agent, or one per agent.
        features: a number of random directions (16 by default), None for one per state that some agent visits, or (S,
            d).
        seed: of what is drawn.
        options: those of `fp.problems.TD`: gamma, policy, sampling, weights. The default policy is drawn at random from
            the seed, and shared.
    """
    env, rng = _gymnasium("taxi").TaxiEnv(), np.random.default_rng(seed)
    return _slipping(env, _successes(success, agents, rng), features, rng, options)


def _slipping(
    env: ToyText, chances: np.ndarray, features: Features, rng: np.random.Generator, options: EvaluationOptions
) -> TD:
    mdp = mdp_of(env)
    return _evaluation([slip(mdp, p) for p in chances], features, rng, options)


def _gymnasium(name: str) -> ModuleType:
    try:
        import importlib

        return importlib.import_module(f"gymnasium.envs.toy_text.{name}")
    except ImportError as error:
        raise FedpointError(f"this needs Gymnasium: pip install 'fedpoint[rl]' ({error})") from None


def mdp_of(env: ToyText) -> MDP:
    """The MDP of a toy-text environment, from its table `env.unwrapped.P` and its initial distribution."""
    table = env.unwrapped.P
    S, A = len(table), len(table[0])
    P, R, ends = np.zeros((S, A, S)), np.zeros((S, A, S)), np.zeros((S, A, S), bool)
    for s, actions in table.items():
        for a, outcomes in actions.items():
            for chance, after, reward, over in outcomes:
                if P[s, a, after] > 0 and (R[s, a, after], ends[s, a, after]) != (reward, over):
                    raise FedpointError(f"state {s}, action {a}: two outcomes in state {after} differ in their reward")
                P[s, a, after] += chance
                R[s, a, after], ends[s, a, after] = reward, over
    return MDP(P, R, terminal=ends, initial=np.asarray(env.unwrapped.initial_state_distrib, dtype=float))


def slip(mdp: MDP, success: float) -> MDP:
    """With probability 1 - success any action happens instead of the chosen one, all equally likely."""
    P, (S, A) = mdp.P, (mdp.states, mdp.actions)
    mixed = success * P + (1 - success) * P.mean(axis=1, keepdims=True)
    # What an outcome earns now depends on the action that happened: the mean over those that lead there.
    some = P > 0
    weight = success * P + (1 - success) / A * P.sum(axis=1, keepdims=True)
    total = success * P * mdp.rewards() + (1 - success) / A * (P * mdp.rewards()).sum(axis=1, keepdims=True)
    R = np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
    over = (some & mdp.ends).any(axis=1, keepdims=True)
    if (over & (some & ~mdp.ends).any(axis=1, keepdims=True)).any():
        raise FedpointError("a transition ends an episode after one action and not after another: it cannot be mixed")
    return MDP(mixed, R, terminal=np.broadcast_to(over, (S, A, S)).copy(), initial=mdp.initial)


def _successes(success: Success, agents: int, rng: np.random.Generator) -> np.ndarray:
    given = np.atleast_1d(numbers("success", success))
    if given.shape == (agents,) and agents != 2:
        chances = given
    elif given.shape == (2,):
        chances = given[0] + (given[1] - given[0]) * rng.random(agents)
    elif given.shape == (1,):
        chances = np.full(agents, given[0])
    else:
        raise FedpointError(f"success must be a number, (low, high), or one per agent; got {success!r}")
    if not ((chances >= 0) & (chances <= 1)).all():
        raise FedpointError(f"success is a probability, between 0 and 1; got {success!r}")
    return chances


def _evaluation(mdps: list[MDP], features: Features, rng: np.random.Generator, options: EvaluationOptions) -> TD:
    S, A = mdps[0].states, mdps[0].actions
    given = options.get("policy")
    policy = options["policy"] = rng.dirichlet(np.ones(A), S) if given is None else as_policy(given, S, A)
    if features is None:
        visited = np.any([chain_of(m, policy, str(k)).stationary > 0 for k, m in enumerate(mdps)], axis=0)
        features = np.eye(S)[:, visited]
    elif isinstance(features, int | np.integer):
        if not 1 <= features <= S:
            raise FedpointError(f"features must be at least 1 and at most the {counted(S, 'state')}; got {features}")
        features = random_features(S, int(features), rng)
    return TD(mdps, features, **options)
