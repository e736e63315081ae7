"""Gymnasium's FrozenLake, CliffWalking and Taxi as federated policy evaluation: a different world for each agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.problems.mdp import MDP, as_policy, chain_of
from fedpoint.problems.td import TD, random_features

Success = float | Sequence[float]


def frozen_lake(
    agents: int = 10,
    size: int = 4,
    success: Success = (0.5, 0.9),
    maps: str = "random",
    features: Any = None,
    gamma: float = 0.95,
    policy: Any = None,
    sampling: str = "iid",
    weights=None,
    seed: int = 0,
) -> TD:
    """TD on Gymnasium's FrozenLake.

    Args:
        size: of the lake, size x size fields.
        success: how likely a step goes where it should, else to one of its sides: a number, (low, high) to draw one
            per agent, or one per agent.
        maps: "random": a lake of its own for each agent; "same": one random lake for all.
        features: None for one per state that some agent visits, a number of random directions, or (S, d).
        policy: as in `TD`; default: drawn at random from the seed, and shared. (Under the uniform policy slips would
            change nothing.)
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
    return _evaluation(mdps, features, gamma, policy, sampling, weights, rng)


def cliff_walking(
    agents: int = 10,
    success: Success = (0.5, 0.9),
    features: Any = None,
    gamma: float = 0.95,
    policy: Any = None,
    sampling: str = "iid",
    weights=None,
    seed: int = 0,
) -> TD:
    """TD on Gymnasium's CliffWalking; where a step fails, any action happens. Arguments as in `frozen_lake`."""
    env = _gymnasium("cliffwalking").CliffWalkingEnv()
    return _slipping(env, agents, success, features, gamma, policy, sampling, weights, seed)


def taxi(
    agents: int = 10,
    success: Success = (0.5, 0.9),
    features: Any = 16,
    gamma: float = 0.95,
    policy: Any = None,
    sampling: str = "iid",
    weights=None,
    seed: int = 0,
) -> TD:
    """TD on Gymnasium's Taxi; where a step fails, any action happens. Arguments as in `frozen_lake`."""
    env = _gymnasium("taxi").TaxiEnv()
    return _slipping(env, agents, success, features, gamma, policy, sampling, weights, seed)


def _slipping(env, agents, success, features, gamma, policy, sampling, weights, seed) -> TD:
    rng = np.random.default_rng(seed)
    mdp = mdp_of(env)
    mdps = [slip(mdp, p) for p in _successes(success, agents, rng)]
    return _evaluation(mdps, features, gamma, policy, sampling, weights, rng)


def _gymnasium(name: str) -> Any:
    try:
        import importlib

        return importlib.import_module(f"gymnasium.envs.toy_text.{name}")
    except ImportError as error:
        raise FedpointError(f"this needs Gymnasium: pip install 'fedpoint[rl]' ({error})") from None


def mdp_of(env: Any) -> MDP:
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
    if agents < 1:
        raise FedpointError("there is no agent: give at least one")
    given = np.atleast_1d(np.asarray(success, dtype=float))
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


def _evaluation(mdps, features, gamma, policy, sampling, weights, rng) -> TD:
    S, A = mdps[0].states, mdps[0].actions
    policy = rng.dirichlet(np.ones(A), S) if policy is None else as_policy(policy, S, A)
    if features is None:
        visited = np.any([chain_of(m, policy, str(k)).stationary > 0 for k, m in enumerate(mdps)], axis=0)
        features = np.eye(S)[:, visited]
    elif isinstance(features, int):
        features = random_features(S, features, rng)
    return TD(mdps, features, gamma, policy, sampling, weights)
