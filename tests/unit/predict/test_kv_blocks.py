from workflow_scripts.predict.kv_blocks import BlockPool


def pool_of(capacity: int, *shared_contents: range) -> BlockPool:
    return BlockPool(capacity, block_size=4, caching=True, shared_contents=[*shared_contents, range(0)])


def fill(pool: BlockPool, request: int, blocks: int) -> None:
    pool.take(blocks)
    pool.fill(request, blocks * pool.block_size)


def found(pool: BlockPool, request: int) -> tuple[list[int], int]:
    """What the shared blocks that a request finds hold, and how many of its own it finds."""
    shared, own = pool.lookup(request, 100)
    return [block.content for block in shared], own


def test_own_blocks_are_lost_from_the_last_on_once_nothing_is_empty():
    pool = pool_of(5)
    pool.take(4)
    pool.release(0, blocks=4, full_blocks=3)
    left = []
    for _ in range(5):
        left.append(found(pool, 0)[1])
        pool.take(1)
    assert left == [3, 3, 3, 2, 1]
    assert found(pool, 0) == ([], 0)
    assert (pool.free, pool.held) == (0, 5)
    assert not pool.evicted_shared


def test_a_lookup_finds_no_more_than_it_may():
    pool = pool_of(8, range(2))
    fill(pool, 0, 4)
    pool.release(0, blocks=4, full_blocks=4)
    assert [(len(shared), own) for shared, own in (pool.lookup(0, most) for most in range(5))] == [
        *((0, 0), (1, 0), (2, 0), (2, 1), (2, 2))
    ]


def test_blocks_that_are_found_are_no_longer_free():
    pool = pool_of(8, range(2), range(2))
    fill(pool, 0, 4)
    pool.adopt(1, *pool.lookup(1, 2))
    assert pool.free == 4  # two users hold the same two blocks
    pool.release(0, blocks=4, full_blocks=4)
    assert pool.free == 6
    pool.release(1, blocks=2, full_blocks=2)
    assert pool.free == 8
    pool.adopt(0, *pool.lookup(0, 4))
    assert pool.free == 4
    assert found(pool, 0) == ([0, 1], 0)


def test_the_block_freed_longest_ago_goes_first():
    pool = pool_of(4, range(0, 2), range(2, 4), range(0, 2))
    for request in (0, 1):
        fill(pool, request, 2)
        pool.release(request, blocks=2, full_blocks=2)
    pool.adopt(2, *pool.lookup(2, 2))  # uses the first text once more
    pool.release(2, blocks=2, full_blocks=2)
    pool.take(1)
    assert pool.evicted_shared
    assert (found(pool, 0), found(pool, 1)) == (([0, 1], 0), ([2], 0))
    pool.take(2)
    assert (found(pool, 0), found(pool, 1)) == (([0], 0), ([], 0))


def test_a_text_is_kept_while_any_copy_of_it_is():
    pool = pool_of(3, range(1), range(1))
    for request in (0, 1):  # neither found the other's
        fill(pool, request, 1)
    for request in (0, 1):
        pool.release(request, blocks=1, full_blocks=1)
    pool.take(2)
    assert found(pool, 0) == ([0], 0)
    pool.take(1)
    assert found(pool, 0) == ([], 0)


def test_blocks_ever_filled_are_counted():
    pool = pool_of(9, range(2))
    pool.take(2)
    pool.release(1, blocks=2, full_blocks=1)
    pool.take(3)
    pool.release(2, blocks=3, full_blocks=0)
    assert pool.most_filled == 4  # one is kept for what it holds, and three were in use


def test_nothing_is_kept_without_caching():
    pool = BlockPool(4, 4, caching=False, shared_contents=[()])
    pool.take(3)
    pool.release(0, blocks=3, full_blocks=3)
    assert found(pool, 0) == ([], 0)
    pool.take(4)
    assert pool.free == 0
