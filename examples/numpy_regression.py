"""Numpy without torch and without asyncio: two processes fit one line to points that each has half of.

python examples/numpy_regression.py 0 & python examples/numpy_regression.py 1
"""

import sys

import numpy as np

import ringwide

PEERS = ["127.0.0.1:29500", "127.0.0.1:29501"]  # one machine; on several, also a key: RINGWIDE_KEY_FILE


def main(rank: int, peers: list[str]) -> None:
    numbers = np.random.default_rng(rank)  # other points on each rank
    x = numbers.uniform(-1, 1, 500)
    y = 3 * x + 2 + numbers.normal(0, 0.1, 500)
    weights = {"slope": np.zeros(1), "offset": np.zeros(1)}
    with ringwide.join_blocking(rank=rank, peers=peers) as ring:
        for _ in range(200):
            error = weights["slope"] * x + weights["offset"] - y
            gradients = {"slope": np.array([np.mean(error * x)]), "offset": np.array([np.mean(error)])}
            ring.allreduce(gradients)  # in place, the mean over all ranks
            for name, gradient in gradients.items():
                weights[name] -= 0.5 * gradient
        line = f"{weights['slope'][0]:.2f} x + {weights['offset'][0]:.2f}"
        print(f"rank {ring.rank} of {ring.size}: {line}, torch is loaded: {'torch' in sys.modules}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or PEERS)
