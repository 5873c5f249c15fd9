"""The data an experiment asks for."""

from ringwide.training.config import TrainingConfig
from ringwide.training.data.samples import Data


def load_data(config: TrainingConfig) -> Data:
    # Each kind is imported only if it is wanted: ten nodes that start at once share the cores of one machine.
    match config.data:
        case "clusters":
            from ringwide.training.data.sources import clusters

            return clusters()
        case "digits":
            from ringwide.training.data.sources import digits

            return digits()
        case "stdlib":
            from ringwide.training.data.sources import standard_library

            return standard_library(text_bytes=config.text_bytes, context=config.context)
        case _:
            from ringwide.training.data.user_data import own_data

            return own_data(config.data, config.data_options)
