"""A small decoder: guesses each next character from those before it. After nanoGPT."""

from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

SPREAD = 0.02  # of the first parameters


class Attention(nn.Module):
    """Each place asks those before it, and itself."""

    def __init__(self, width: int, heads: int, dropout: float, spread: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value = _layer(width, 3 * width)
        self.answer = _layer(width, width, spread)

    def forward(self, inputs: Tensor) -> Tensor:
        batch, places, width = inputs.shape
        by_head = self.query_key_value(inputs).view(batch, places, 3, self.heads, width // self.heads)
        query, key, value = by_head.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        heard = scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        answer: Tensor = self.answer(heard.transpose(1, 2).reshape(batch, places, width))
        return answer


class Block(nn.Module):
    """Adds twice to what passes through: what the places before have to say, and what it makes of that."""

    def __init__(self, width: int, heads: int, dropout: float, spread: float) -> None:
        super().__init__()
        self.before_attention, self.before_thought = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, spread)
        self.thought, self.conclusion = _layer(width, 4 * width), _layer(4 * width, width, spread)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs + self.dropout(self.attention(self.before_attention(inputs)))
        thought = gelu(self.thought(self.before_thought(inputs)))
        result: Tensor = inputs + self.dropout(self.conclusion(thought))
        return result


class Transformer(nn.Module):
    def __init__(self, *, vocabulary: int, context: int, layers: int, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        spread = SPREAD / (2 * layers) ** 0.5  # so that the sum of what blocks add does not grow with their number
        self.characters, self.places = _embedding(vocabulary, width), _embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout, spread) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        # What a character is when it is read is also what it is when it is guessed: one tensor, two uses.
        self.head.weight = self.characters.weight

    def forward(self, characters: Tensor) -> Tensor:
        places = self.places.weight[: characters.shape[1]]
        guesses: Tensor = self.head(self.norm(self.blocks(self.dropout(self.characters(characters) + places))))
        return guesses


def _layer(inputs: int, outputs: int, spread: float = SPREAD) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=spread)
    nn.init.zeros_(layer.bias)
    return layer


def _embedding(entries: int, width: int) -> nn.Embedding:
    embedding = nn.Embedding(entries, width)
    nn.init.normal_(embedding.weight, std=SPREAD)
    return embedding
