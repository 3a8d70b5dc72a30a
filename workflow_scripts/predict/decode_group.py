"""The decoding sequences as one group: each computes one token in every step."""


class DecodeGroup:
    """What a group of decoding sequences does in any step, without visiting each sequence.

    A sequence is represented by its birth: the step before which it would have computed nothing, had it always been
    decoding. Before step t it has computed t - birth tokens, and it takes a block in step t if that is a multiple of
    the block size. So the group only needs the sum of births and, for each remainder, their number.

    >>> group = DecodeGroup(block_size=4)
    >>> group.join(birth=-4)
    >>> group.join(birth=-6)
    >>> group.kv_tokens(step=0)
    12
    >>> [group.blocks(step, 1) for step in range(6)]
    [1, 0, 1, 0, 1, 0]
    """

    def __init__(self, block_size: int) -> None:
        self.size = 0
        self._block_size = block_size
        self._sum_of_births = 0
        self._by_remainder = [0] * block_size

    def join(self, birth: int) -> None:
        """Add a sequence."""
        self.size += 1
        self._sum_of_births += birth
        self._by_remainder[birth % self._block_size] += 1

    def leave(self, birth: int) -> None:
        """Remove a sequence."""
        self.size -= 1
        self._sum_of_births -= birth
        self._by_remainder[birth % self._block_size] -= 1

    def kv_tokens(self, step: int) -> int:
        """Tokens that the group attends to in a step, including those that it computes."""
        return self.size * (step + 1) - self._sum_of_births

    def blocks(self, step: int, steps: int) -> int:
        """Blocks that the group takes in `steps` steps, beginning with `step`."""
        cycles, rest = divmod(steps, self._block_size)
        first = step % self._block_size
        beyond = max(0, first + rest - self._block_size)
        return cycles * self.size + sum(self._by_remainder[first : first + rest]) + sum(self._by_remainder[:beyond])

    def steps_with(self, blocks: int, step: int) -> int:
        """Number of steps, beginning with `step`, for which this many blocks suffice; the group must not be empty.

        >>> group = DecodeGroup(block_size=4)
        >>> group.join(birth=0)
        >>> group.join(birth=2)
        >>> [group.steps_with(blocks, step=1) for blocks in range(4)]
        [1, 3, 5, 7]
        """
        # Each sequence takes one block every `block_size` steps.
        cycles, left = divmod(blocks, self.size)
        steps = cycles * self._block_size
        while (taken := self._by_remainder[(step + steps) % self._block_size]) <= left:
            left -= taken
            steps += 1
        return steps
