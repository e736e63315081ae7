"""FedJAX's FedProx for a certificate, clients weighted by their number of examples."""

from importlib.metadata import version

import bridge
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

jax.config.update("jax_enable_x64", True)

import fedjax  # noqa: E402 - after the flag

AGENTS = {}


def ask(k, w):
    return np.asarray(AGENTS[int(k)].field(np.asarray(w)))


@jax.custom_vjp
def loss(w, k):
    return 0.0 * w.sum()


def backward(at, back):
    w, k = at
    field = io_callback(ask, jax.ShapeDtypeStruct(w.shape, w.dtype), k, w, ordered=True)
    return back * field, None


loss.defvjp(lambda w, k: (0.0 * w.sum(), (w, k)), backward)


class Data:
    """As many batches as an agent has local steps; a batch says whose it is."""

    def __init__(self, agent):
        self.agent = agent

    def __len__(self):
        return int(self.agent.weight * 1e12)

    def shuffle_repeat_batch(self, hparams):
        return [{"k": np.array([self.agent.k])}] * self.agent.steps


def example_loss(params, batch, rng):
    return loss(params["w"], batch["k"][0])[None]


class Federation:
    """Plain SGD on the server with step 1 keeps no state, so a round needs the model alone."""

    def round(self, w, agents, population):
        AGENTS.update({a.k: a for a in agents})
        state = METHOD.init({"w": jnp.asarray(w)})
        clients = [(str(a.k).encode(), Data(a), KEY) for a in agents]
        state, _ = METHOD.apply(state, clients)
        return np.asarray(state.params["w"]).tolist()


KEY = jax.random.PRNGKey(0)
METHOD = fedjax.algorithms.fed_prox.fed_prox(
    example_loss, fedjax.optimizers.sgd(bridge.STEP), fedjax.optimizers.sgd(1.0), None, bridge.PULL
)
bridge.serve({"fedprox": Federation}, version("fedjax"))
