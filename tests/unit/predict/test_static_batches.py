import pytest

from tests.unit.predict.test_timing import FACTS, lengths
from workflow_scripts.engines.steps import StaticBatches
from workflow_scripts.physics.step_time import COMPUTING, KINDS, READING
from workflow_scripts.predict.static_batches import static_work

# 8 layers of 4 KV heads with 64 elements, three query heads each: a token has 16,384 bytes in 32 bits.
TOKEN, WEIGHTS = 16_384, 213_961_728
LAYER_PARAMETERS, LM_HEAD_PARAMETERS, WIDTH = 50_331_648, 3_145_728, 6144
MATRICES = 4 * (LAYER_PARAMETERS + LM_HEAD_PARAMETERS)


def work(prompts, outputs, copies_matrices=False):
    return static_work(lengths(prompts, outputs), StaticBatches(len(prompts)), FACTS, copies_matrices=copies_matrices)


def of_kinds(rows, kinds):
    return sum(rows[:, KINDS.index(kind)] for kind in kinds)


def kv_of(found):
    """Bytes of KV in slots of the cache, of each segment's first step."""
    assert of_kinds(found.first, ["weight_bytes"]).tolist() == [WEIGHTS] * len(found.steps)
    return (of_kinds(found.first, ["kv_bytes"]) / TOKEN).tolist()


def test_a_padded_batch():
    found = work([3, 5], [2, 3])
    assert found.steps.tolist() == [1, 2]
    # Two rows of 5 slots, then of 6: each is copied to a new tensor (read and written) and, under the mask, read,
    # written for three query heads and read from there. A step later each row has a slot more.
    assert kv_of(found) == [2 * 5 * (2 + 7), 2 * 6 * (2 + 7)]
    assert of_kinds(found.growth, READING).tolist() == [0, 2 * 9 * TOKEN]
    # All 10 tokens pass the layers and two the output matrix; under a mask each of 5 looks at all slots.
    assert of_kinds(found.first, COMPUTING).tolist() == [
        2 * LAYER_PARAMETERS * 10 + 2 * LM_HEAD_PARAMETERS * 2 + 4 * WIDTH * 2 * 5 * 5,
        2 * (LAYER_PARAMETERS + LM_HEAD_PARAMETERS) * 2 + 4 * WIDTH * 2 * 6,
    ]
    assert of_kinds(found.growth, COMPUTING).tolist() == [0, 4 * WIDTH * 2]


def test_without_padding_there_is_no_mask():
    found = work([4], [2])
    assert kv_of(found) == [4 * 3, 5 * 3]
    # Without a mask a prompt's tokens look at themselves and those before: 1 + 2 + 3 + 4.
    assert of_kinds(found.first, COMPUTING)[0] == 2 * LAYER_PARAMETERS * 4 + 2 * LM_HEAD_PARAMETERS + 4 * WIDTH * 10


@pytest.mark.parametrize(
    ("prompts", "outputs", "copied"),
    # One prompt has several tokens in the layers, but one for the output matrix; its further steps have one in both.
    [([3, 5], [2, 3], [MATRICES, MATRICES]), ([4], [2], [4 * LAYER_PARAMETERS, 0])],
)
def test_matrices_are_copied_where_several_rows_are_multiplied(prompts, outputs, copied):
    copies, none = (of_kinds(work(prompts, outputs, each).first, READING) for each in (True, False))
    assert (copies - none).tolist() == copied
