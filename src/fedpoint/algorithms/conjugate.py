"""A Newton step by conjugate gradients: what a hub keeps between products with the Hessian, and makes of each."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpoint.core.types import Model
from fedpoint.core.vector import dot, where, zeros


class Solving(NamedTuple):
    """The last model that was found good, the one that agents are asked about, and the step from there so far."""

    w: Model
    trial: Model
    step: Model
    residual: Model  # -(H step + g)
    direction: Model  # along which agents are asked; zero once the step is found
    stiffest: Array  # the largest curvature along a direction so far


def nothing_solved(w: Model, trial: Model) -> Solving:
    """Between rounds."""
    nothing = zeros(trial)
    return Solving(w, trial, nothing, nothing, nothing, jnp.zeros_like(dot(trial, trial)))


def turned(hub: Solving, product: Model) -> Solving:
    """One step of conjugate gradients, after the product of H with the direction is known.

    It ends along a direction that does not bend the loss, for rounding; where the loss bends down, with the step that
    it has, or along the gradient if it has none.
    """
    p, r = hub.direction, hub.residual
    bend, length, size = jnp.asarray(dot(p, product)), jnp.asarray(dot(p, p)), jnp.asarray(dot(r, r))
    curvature = bend / jnp.where(length > 0, length, 1.0)
    stiffest = jnp.maximum(hub.stiffest, abs(curvature))
    d = sum(a.size for a in jax.tree.leaves(p))
    bent = abs(curvature) > 10 * d * jnp.finfo(stiffest.dtype).eps * stiffest
    goes = bent & ((curvature > 0) | (jnp.asarray(dot(hub.step, hub.step)) == 0))
    by = jnp.where(goes, size / jnp.where(goes, abs(bend), 1.0), 0.0)
    residual = r - by * product
    ahead = residual + dot(residual, residual) / jnp.where(size > 0, size, 1.0) * p
    direction = where(goes & (curvature > 0), ahead, zeros(p))
    return hub._replace(step=hub.step + by * p, residual=residual, direction=direction, stiffest=stiffest)
