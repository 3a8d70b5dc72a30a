"""The version of what a cell measures.

Measuring rules do not depend on the source of the measuring modules, so that changing a comment never costs a GPU hour.
Raise the version when what is measured changes; every cell of an older protocol is then measured again.

1: fixed output lengths with `ignore_eos`, greedy, warm-up with other prompts, prefix cache reset between repeats.
2: HuggingFace and vLLM's server ignore a checkpoint's own settings for generation, such as a repetition penalty.
3: Warm-up at the cell's own concurrency until its rate is steady; steps of vLLM at the times of its engine core;
   HuggingFace in a process that has not imported vLLM.
"""

PROTOCOL_VERSION = 3
# For the engines' random numbers, and for the gaps between requests that are sent to a server in the first round.
SEED = 0
