"""The version of what a cell measures.

Measuring rules do not depend on the source of the measuring modules, so that a comment never repeats a GPU hour.
Raise the version when what is measured changes; every cell of an older protocol is then measured again.

1: fixed output lengths with `ignore_eos`, greedy, warm-up with other prompts, prefix cache reset between repeats.
2: HuggingFace and vLLM's server leave aside what a checkpoint sets for generating, such as a penalty for repetitions.
3: Warm-up at the cell's own concurrency until its rate is steady; steps of vLLM at the times of its engine core;
   HuggingFace in a process that has not imported vLLM.
"""

PROTOCOL_VERSION = 3
